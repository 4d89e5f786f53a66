//! Assigns volumes to devices, and checks Play's limits.

use shardwright_bundle::{Bundle, Share, Volume};
use shardwright_vocabulary::{Error, Result};

use super::{Audience, AudienceReport, ChipName, PlayOptions, rules};
use crate::code;

/// Folder of the volumes in the assets.
pub(super) const FOLDER: &str = "model";

/// Device groups, and the first pack's name.
pub(super) struct Plan {
    pub(super) name: String,
    /// Groups in the order of the file that defines them, the group of all others last.
    pub(super) groups: Vec<Group>,
    pub(super) notices: Vec<String>,
}

/// A group of devices with its variant.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) soc: Option<String>,
    pub(super) chips: Vec<ChipName>,
    pub(super) share: Option<Share>,
    pub(super) volumes: Vec<Volume>,
}

impl Plan {
    /// Checks whether there is more than the group of all devices.
    pub(super) fn is_targeted(&self) -> bool {
        self.groups.iter().any(|group| !group.chips.is_empty())
    }
}

impl Group {
    /// Returns the name of the group's folder. Building an app removes the suffix.
    pub(super) fn folder(&self, is_targeted: bool) -> String {
        if is_targeted { format!("{FOLDER}#group_{}", self.name) } else { FOLDER.to_owned() }
    }

    /// Returns the bytes of all volumes.
    pub(super) fn bytes(&self) -> u64 {
        self.volumes.iter().map(|volume| volume.bytes).fold(0, u64::saturating_add)
    }

    pub(super) fn report(&self) -> AudienceReport {
        AudienceReport {
            group: self.name.clone(),
            soc: self.soc.clone(),
            chips: self.chips.clone(),
            bundle: self.share.as_ref().map(|share| share.sha256().to_string()),
            volumes: self.volumes.len(),
            bytes: self.bytes(),
        }
    }
}

pub(super) fn planned(
    bundle: &Bundle,
    audiences: &[(String, Audience)],
    options: &PlayOptions,
) -> Result<Plan> {
    let name = options.name.clone().unwrap_or_else(|| rules::name_of(&bundle.manifest().model.name));
    // The base module of every app has that name.
    if !rules::is_name(&name) || name == "base" {
        return Err(invalid_name("an AI pack", &name));
    }
    code::expect_none(bundle, bundle.manifest())?;
    let least = |asked: Option<u64>, rule: u64| asked.map_or(rule, |bytes| bytes.min(rule));
    let limits = Limits {
        pack: least(options.pack_bytes, rules::PACK_BYTES),
        app: least(options.app_bytes, rules::APP_BYTES),
    };
    let mut groups: Vec<Group> = Vec::with_capacity(audiences.len() + 1);
    let mut others = None;
    let mut notices = Vec::new();
    for (soc, audience) in audiences {
        match audience {
            Audience::Others => {
                others = Some(group(bundle, rules::OTHER.to_owned(), soc, Vec::new(), limits)?)
            }
            Audience::Chips(chips) => {
                let name = rules::name_of(soc);
                expect_apart(&groups, &name, soc, chips)?;
                groups.push(group(bundle, name, soc, chips.clone(), limits)?);
            }
        }
    }
    groups.push(others.unwrap_or_else(|| {
        notices.push(format!(
            "devices with another chip get a pack without a model: the bundle has no variant for {}",
            "`generic`"
        ));
        Group {
            name: rules::OTHER.to_owned(),
            soc: None,
            chips: Vec::new(),
            share: None,
            volumes: Vec::new(),
        }
    }));
    let is_named = |soc: &str| audiences.iter().any(|(named, _)| named == soc);
    let left_out = bundle.manifest().variants.iter().filter(|variant| !is_named(&variant.soc));
    notices.extend(left_out.map(|variant| format!("the variant for {} is in no pack", variant.soc)));
    if groups.iter().any(|group| group.bytes() > rules::BYTES_OF_SDK_21) {
        notices.push("an app of more than 1 GB must set `minSdk` to 21 or more".to_owned());
    }
    Ok(Plan { name, groups, notices })
}

/// Limits in bytes for a pack, and for all packs of a device.
#[derive(Clone, Copy)]
struct Limits {
    pack: u64,
    app: u64,
}

fn group(bundle: &Bundle, name: String, soc: &str, chips: Vec<ChipName>, limits: Limits) -> Result<Group> {
    let share = bundle.share(&[soc])?;
    let volumes = share.volumes(limits.pack).map_err(|file| {
        let named = share.manifest().references().into_iter().find(|(_, named)| *named == file);
        let used_as = named.map_or_else(|| "the manifest".to_owned(), |(used_as, _)| used_as);
        let (bytes, limit) = (file.bytes, limits.pack);
        let what = format!("{used_as} of {soc} has {bytes} bytes, and the limit of an AI pack is {limit}");
        Error::unsupported(what).with_help(
            "compile it in more shards: `--limit artefact-bytes=1400000000`, or a table in fewer bits",
        )
    })?;
    let group = Group { name, soc: Some(soc.to_owned()), chips, share: Some(share), volumes };
    let (bytes, limit) = (group.bytes(), limits.app);
    if bytes > limit {
        let what =
            format!("devices with {soc} would get {bytes} bytes, and a version of an app may have {limit}");
        let help = "compile it in fewer bits (`--size 4GB`), or deliver it outside of the app";
        return Err(Error::unsupported(what).with_help(help));
    }
    Ok(group)
}

/// Checks that every device is in one group at most, because Play would use the first of several.
fn expect_apart(groups: &[Group], name: &str, soc: &str, chips: &[ChipName]) -> Result<()> {
    if chips.is_empty() {
        let what = format!("the Android names of {soc} are unknown, and Google Play selects devices by them");
        let help =
            "list them under `android` in the profile of the chip (`--profiles`), or compile without it";
        return Err(Error::missing(what).with_help(help));
    }
    if name == rules::OTHER {
        return Err(invalid_name("a device group", name));
    }
    let first = |group: &Group| group.soc.clone().unwrap_or_default();
    if let Some(same) = groups.iter().find(|group| group.name == name) {
        let what = format!("{} and {soc} would both be the device group `{name}`", first(same));
        return Err(Error::unsupported(what).with_help("rename the profile of one of them"));
    }
    for chip in chips {
        if let Some(same) = groups.iter().find(|group| group.chips.contains(chip)) {
            let (manufacturer, model, first) = (&chip.manufacturer, &chip.model, first(same));
            let what = format!("{manufacturer} {model} belongs to both {first} and {soc}");
            let help = "Play gives a device the content of one group: compile for one of the two";
            return Err(Error::unsupported(what).with_help(help));
        }
    }
    Ok(())
}

fn invalid_name(of: &str, name: &str) -> Error {
    let rule = "expected a letter, then letters, digits and underscores, and not `base` or `other`";
    Error::argument(format!("`{name}` is not a valid name of {of}: {rule}"))
        .with_help("name the pack with `--name`")
}
