//! AI packs of Google Play: modules of an Android project that contain models, delivered by chip.
//!
//! ```text
//! DIR/<pack>/build.gradle
//! DIR/<pack>/src/main/assets/model#group_<chip>/volume-1.swb   what devices with that chip get
//! DIR/<pack>/src/main/assets/model#group_other/volume-1.swb    what all others get
//! DIR/device_targeting_config.xml                              which chips are of which group
//! DIR/README.md                                                what the app's own files have to say
//! ```
//!
//! A variant that is too large for one pack is split into volumes: the pack `<pack>_2` contains the
//! second volume of every group that needs one. All packs have a folder for every group, because
//! the tool that builds apps refuses any other layout ("All modules with device group targeting
//! must support the same set of groups": bundletool 1.18.1, `DeviceGroupParityValidator`). No
//! folder is empty (`AssetsTargetingValidator`): for a group without a volume it contains a text
//! file.

mod plan;
pub(crate) mod rules;
mod texts;

use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;
use shardwright_bundle::{Bundle, FileProgress, volume_name};
use shardwright_vocabulary::{PlainName, Result};

use crate::folder::{Folder, Part};
use plan::{Group, planned};

/// Time at which packs are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryMode {
    /// With the app, as a part of its packages.
    InstallTime,
    /// Automatically, right after the app.
    FastFollow,
    /// When the app requests them.
    OnDemand,
}

impl DeliveryMode {
    /// Returns the name in Gradle.
    pub const fn name(self) -> &'static str {
        match self {
            DeliveryMode::InstallTime => "install-time",
            DeliveryMode::FastFollow => "fast-follow",
            DeliveryMode::OnDemand => "on-demand",
        }
    }
}

/// The names of a chip in Android: `Build.SOC_MANUFACTURER` and `Build.SOC_MODEL`, letter for
/// letter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ChipName {
    /// Manufacturer, such as `QTI`.
    pub manufacturer: String,
    /// Model, such as `SM8650`.
    pub model: String,
}

/// The devices that get a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Devices with one of these chips.
    Chips(Vec<ChipName>),
    /// Devices that are in no other group.
    Others,
}

/// Options for writing packs.
#[derive(Clone, Debug)]
pub struct PlayOptions {
    /// Name of the first pack. Default: the model's name.
    pub name: Option<String>,
    /// Time of delivery.
    pub mode: DeliveryMode,
    /// Largest size of a pack in bytes. The default and maximum is Play's limit.
    pub pack_bytes: Option<u64>,
    /// Largest number of bytes of all packs on a device: Play's limit for a version of an app, less
    /// the app's own bytes. The default and maximum is Play's limit.
    pub app_bytes: Option<u64>,
}

/// The written packs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AiPackReport {
    /// Path of the folder.
    pub path: String,
    /// Time of delivery.
    pub mode: DeliveryMode,
    /// The packs, in the order of their volumes.
    pub packs: Vec<PlayPack>,
    /// Device groups with their variants.
    pub audiences: Vec<AudienceReport>,
    /// Notices for the app's developers.
    pub notices: Vec<String>,
}

/// A pack of the app.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlayPack {
    /// Name of the pack and of its module.
    pub name: String,
    /// Content for each group.
    pub content: Vec<PackContent>,
}

/// Content of a pack for a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PackContent {
    /// Name of the device group.
    pub group: String,
    /// Path of the volume in the assets, as the app requests it. `None` if the group needs no
    /// volume here.
    pub asset: Option<String>,
    /// Size of the volume in bytes.
    pub bytes: u64,
}

/// Delivery to a device group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AudienceReport {
    /// Name of the device group.
    pub group: String,
    /// Chip of the variant. `None` if the group gets no model.
    pub soc: Option<String>,
    /// The chips by their names in Android. Empty for the group of all others.
    pub chips: Vec<ChipName>,
    /// Hash of the bundle that they get.
    pub bundle: Option<String>,
    /// Number of its volumes.
    pub volumes: usize,
    /// Largest number of bytes to download.
    pub bytes: u64,
}

/// Writes AI packs into the folder `to`, which must be missing or empty. `audiences` lists variants
/// of the bundle by chip, with the devices that get them. Variants that are not listed are left
/// out, with a notice.
///
/// # Errors
///
/// If the bundle breaks a rule of Google Play, or a file cannot be read or written.
pub fn ai_packs(
    bundle: &Bundle,
    audiences: &[(String, Audience)],
    options: &PlayOptions,
    to: &Path,
    mut progress: impl FnMut(FileProgress) -> ControlFlow<()>,
) -> Result<AiPackReport> {
    let plan = planned(bundle, audiences, options)?;
    let folder = Folder::create(to)?;
    let count = plan.groups.iter().map(|group| group.volumes.len()).max().unwrap_or(1).max(1);
    let mut packs = Vec::with_capacity(count);
    for number in 1..=count {
        let name = if number == 1 { plan.name.clone() } else { format!("{}_{number}", plan.name) };
        let name = PlainName::new(name)?;
        folder
            .write(&[Part::Name(&name), Part::Ours("build.gradle")], &texts::module(&name, options.mode))?;
        let mut content = Vec::with_capacity(plan.groups.len());
        for group in &plan.groups {
            let assets = PlainName::new(group.folder(plan.is_targeted()))?;
            let place = [Part::Name(&name), Part::Ours("src/main/assets"), Part::Name(&assets)];
            content.push(match (&group.share, group.volumes.get(number - 1)) {
                (Some(share), Some(volume)) => {
                    let file = PlainName::new(volume_name(number))?;
                    share.pack(
                        volume,
                        &folder.path(&[&place[..], &[Part::Name(&file)]].concat())?,
                        &mut progress,
                    )?;
                    let asset = Some(format!("{}/{file}", plan::FOLDER));
                    PackContent { group: group.name.clone(), asset, bytes: volume.bytes }
                }
                _ => {
                    // A repeated name in two packs would clash if packs are part of one app.
                    let file = PlainName::new(format!("no-volume-{number}.txt"))?;
                    folder.write(&[&place[..], &[Part::Name(&file)]].concat(), texts::NO_VOLUME)?;
                    PackContent { group: group.name.clone(), asset: None, bytes: 0 }
                }
            });
        }
        packs.push(PlayPack { name: name.into(), content });
    }
    if plan.is_targeted() {
        folder.write(&[Part::Ours(texts::TARGETING_FILE)], &texts::targeting(&plan.groups))?;
    }
    let report = AiPackReport {
        path: to.display().to_string(),
        mode: options.mode,
        audiences: plan.groups.iter().map(Group::report).collect(),
        notices: plan.notices,
        packs,
    };
    folder.write(&[Part::Ours("README.md")], &texts::readme(&report))?;
    folder.keep()?;
    Ok(report)
}
