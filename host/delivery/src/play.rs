//! AI packs of Google Play: modules of an Android project that hold models, delivered by chip.
//!
//! ```text
//! DIR/<pack>/build.gradle
//! DIR/<pack>/src/main/assets/model#group_<chip>/volume-1.swb   what devices with that chip get
//! DIR/<pack>/src/main/assets/model#group_other/volume-1.swb    what all others get
//! DIR/device_targeting_config.xml                              which chips are of which group
//! DIR/README.md                                                what the app's own files have to say
//! ```
//!
//! A variant too large for one pack lies in volumes: the pack `<pack>_2` has the second of every
//! group that needs one. All packs have a folder for every group, since the tool that builds apps
//! refuses any other ("All modules with device group targeting must support the same set of
//! groups": bundletool 1.18.1, `DeviceGroupParityValidator`), and no folder is empty
//! (`AssetsTargetingValidator`): a group without a volume has a line of text there.

mod plan;
pub(crate) mod rules;
mod texts;

use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;
use shardwright_bundle::{Bundle, Progress, volume_name};

use crate::DeliveryError;
use crate::folder::Folder;
use plan::{Group, planned};

/// When the packs come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeliveryMode {
    /// With the app; they are part of its packages.
    InstallTime,
    /// By themselves, right after the app.
    FastFollow,
    /// When the app asks for them.
    OnDemand,
}

impl DeliveryMode {
    /// As Gradle spells it.
    pub const fn name(self) -> &'static str {
        match self {
            DeliveryMode::InstallTime => "install-time",
            DeliveryMode::FastFollow => "fast-follow",
            DeliveryMode::OnDemand => "on-demand",
        }
    }
}

/// A chip as Android names it: `Build.SOC_MANUFACTURER` and `Build.SOC_MODEL`, letter for letter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ChipName {
    /// `QTI`
    pub manufacturer: String,
    /// `SM8650`
    pub model: String,
}

/// Who gets a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Devices with one of these chips.
    Chips(Vec<ChipName>),
    /// All that are of no other group.
    Others,
}

/// How packs are written.
#[derive(Clone, Debug)]
pub struct PlayOptions {
    /// Name of the first pack; the model's without it.
    pub name: Option<String>,
    /// When they come.
    pub mode: DeliveryMode,
    /// The most bytes of a pack; what Play takes without it, and never more.
    pub pack_bytes: Option<u64>,
    /// The most bytes that a device may get of all packs: what the app itself leaves of what Play
    /// takes for a version of an app, all of it without this, and never more.
    pub app_bytes: Option<u64>,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AiPackReport {
    /// The folder.
    pub path: String,
    /// When the packs come.
    pub mode: DeliveryMode,
    /// The packs, in the order of the volumes that they hold.
    pub packs: Vec<PlayPack>,
    /// Who gets what.
    pub audiences: Vec<AudienceReport>,
    /// What the app has to know.
    pub notices: Vec<String>,
}

/// A pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlayPack {
    /// Its name, which is that of its module.
    pub name: String,
    /// What it holds for each group.
    pub content: Vec<PackContent>,
}

/// What a pack holds for a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PackContent {
    /// The device group.
    pub group: String,
    /// Path of the volume in the assets, as the app asks for it; `None` if the group needs none.
    pub asset: Option<String>,
    /// Bytes of the volume.
    pub bytes: u64,
}

/// What the devices of a group get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AudienceReport {
    /// The device group.
    pub group: String,
    /// The variant; `None` if they get nothing.
    pub soc: Option<String>,
    /// The chips, as Android names them; none for all others.
    pub chips: Vec<ChipName>,
    /// Identity of the bundle that they get.
    pub bundle: Option<String>,
    /// Files that it lies in.
    pub volumes: usize,
    /// What they download at most.
    pub bytes: u64,
}

/// Writes AI packs into the folder `to`, in which nothing may be yet. `audiences` says for each
/// variant of the bundle, by its chip, who gets it; variants that are not named are left out, with
/// a notice.
///
/// # Errors
///
/// A rule of Google Play that the bundle does not keep, and what cannot be read or written.
pub fn ai_packs(
    bundle: &Bundle,
    audiences: &[(String, Audience)],
    options: &PlayOptions,
    to: &Path,
    mut progress: impl FnMut(Progress) -> ControlFlow<()>,
) -> Result<AiPackReport, DeliveryError> {
    let plan = planned(bundle, audiences, options)?;
    let folder = Folder::create(to)?;
    let count = plan.groups.iter().map(|group| group.volumes.len()).max().unwrap_or(1).max(1);
    let mut packs = Vec::with_capacity(count);
    for number in 1..=count {
        let name = if number == 1 { plan.name.clone() } else { format!("{}_{number}", plan.name) };
        folder.write(&format!("{name}/build.gradle"), &texts::module(&name, options.mode))?;
        let mut content = Vec::with_capacity(plan.groups.len());
        for group in &plan.groups {
            let assets = format!("{name}/src/main/assets/{}", group.folder(plan.is_targeted()));
            content.push(match (&group.share, group.volumes.get(number - 1)) {
                (Some(share), Some(volume)) => {
                    let file = volume_name(number);
                    share.pack(volume, &folder.path(&format!("{assets}/{file}"))?, &mut progress)?;
                    let asset = Some(format!("{}/{file}", plan::FOLDER));
                    PackContent { group: group.name.clone(), asset, bytes: volume.bytes }
                }
                _ => {
                    // One name in two packs would clash where packs are part of one app.
                    let file = format!("{assets}/no-volume-{number}.txt");
                    folder.write(&file, texts::NO_VOLUME)?;
                    PackContent { group: group.name.clone(), asset: None, bytes: 0 }
                }
            });
        }
        packs.push(PlayPack { name, content });
    }
    if plan.is_targeted() {
        folder.write(texts::TARGETING_FILE, &texts::targeting(&plan.groups))?;
    }
    let report = AiPackReport {
        path: to.display().to_string(),
        mode: options.mode,
        audiences: plan.groups.iter().map(Group::report).collect(),
        notices: plan.notices,
        packs,
    };
    folder.write("README.md", &texts::readme(&report))?;
    folder.keep()?;
    Ok(report)
}
