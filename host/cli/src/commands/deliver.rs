use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use shardwright::tools::stray_notices;
use shardwright::{SearchPath, Watch};
use shardwright_bundle::{Bundle, FileProgress};
use shardwright_delivery as delivery;
use shardwright_doctor::profiles_in;
use shardwright_planning::profile::{GENERIC, Profile, ProfileRegistry};

use super::{print_by, say_each, search_path, trust};
use crate::arguments::{
    Channel, Delivery, Format, NeedsArguments, PackArguments, PlannerPlaces, ProfilePlaces, ShimPlaces,
};
use crate::outcome::{Failure, Outcome};
use crate::views;

/// Packs a bundle into one file, or lays it out for a channel.
pub fn pack(arguments: &PackArguments, format: Format) -> Result<Outcome, Failure> {
    let Channel { output, ai_pack, adb, hf } = &arguments.channel;
    let mut watch = views::ProgressLine::new("packing", &arguments.bundle);
    let rules = trust::rules_for_bundle(&arguments.trust, &arguments.expected)?;
    let bundle = Bundle::open_trusting(&arguments.bundle, &rules)?;
    say_each(&stray_notices(&bundle), false);
    let bundle = match &arguments.key {
        Some(key) => {
            let release = (arguments.signed_as.as_deref(), arguments.release);
            let signer = shardwright_doctor::signer(&bundle, release, key)?;
            bundle.signing(signer)
        }
        None => bundle,
    };
    let mut copied = |progress: FileProgress| {
        let done = u128::from(progress.done) * 1000 / u128::from(progress.total.max(1));
        watch.progress(done as u32, "copying");
        if watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    if let Some(to) = output {
        let report = shardwright_bundle::pack(&bundle, to, copied)?;
        drop(watch);
        return print_by(&rules, format, &report, views::packed);
    }
    if let Some(to) = ai_pack {
        let profiles = profiles_in(&places(&arguments.shims, &arguments.profiles), &rules);
        let options = delivery::PlayOptions {
            name: arguments.name.clone(),
            mode: mode(arguments.delivery.unwrap_or(Delivery::OnDemand)),
            pack_bytes: arguments.pack_size,
            app_bytes: arguments.app_size,
        };
        let audiences = audiences(&bundle, &profiles)?;
        let report = delivery::ai_packs(&bundle, &audiences, &options, to, &mut copied)?;
        drop(watch);
        report.notices.iter().for_each(|notice| views::say(&format!("note: {notice}")));
        return print_by(&rules, format, &report, views::ai_packs);
    }
    if let Some(to) = adb {
        let places = places(&arguments.shims, &arguments.profiles);
        let (shims, skipped) = shardwright_doctor::shim_needs(&places, &rules);
        skipped.iter().for_each(|skipped| views::say(&format!("note: {skipped}")));
        let facts = facts(&bundle, &profiles_in(&places, &rules));
        let soc = arguments.soc.as_deref();
        let report = delivery::adb_folder(&bundle, soc, &shims, &facts, to, &mut copied)?;
        drop(watch);
        return print_by(&rules, format, &report, views::adb);
    }
    let to = hf.as_deref().unwrap_or(Path::new("."));
    let card =
        delivery::Card { licence: arguments.licence.clone(), base_model: arguments.base_model.clone() };
    let report = delivery::hub_folder(&bundle, &card, to, &mut copied)?;
    drop(watch);
    print_by(&rules, format, &report, views::hub)
}

/// Lists the requirements of a bundle.
pub fn needs(arguments: &NeedsArguments, format: Format) -> Result<Outcome, Failure> {
    let rules = trust::rules_for_bundle(&arguments.trust, &arguments.expected)?;
    let bundle = Bundle::open_trusting(&arguments.bundle, &rules)?;
    let places = places(&arguments.shims, &arguments.profiles);
    let (shims, skipped) = shardwright_doctor::shim_needs(&places, &rules);
    let facts = facts(&bundle, &profiles_in(&places, &rules));
    let mut report = delivery::needs(&bundle, arguments.soc.as_deref(), &shims, &facts)?;
    report.skipped = skipped;
    print_by(&rules, format, &report, views::needs)
}

fn mode(delivery: Delivery) -> delivery::DeliveryMode {
    match delivery {
        Delivery::InstallTime => delivery::DeliveryMode::InstallTime,
        Delivery::FastFollow => delivery::DeliveryMode::FastFollow,
        Delivery::OnDemand => delivery::DeliveryMode::OnDemand,
    }
}

fn places(shims: &ShimPlaces, profiles: &ProfilePlaces) -> SearchPath {
    search_path(shims, &PlannerPlaces::default(), profiles)
}

/// Returns the profile of a variant's chip, or `None` if it has no profile.
fn profile(soc: &str, registry: &ProfileRegistry) -> Result<Option<Profile>, Failure> {
    Ok(registry.get(soc)?.map(|found| found.profile))
}

/// Assigns variants to devices: a device gets the variant for its chip, by the names in the chip's
/// profile. All other devices get the variant for no particular chip.
fn audiences(
    bundle: &Bundle,
    registry: &ProfileRegistry,
) -> Result<Vec<(String, delivery::Audience)>, Failure> {
    let of = |soc: &str| -> Result<delivery::Audience, Failure> {
        if soc == GENERIC {
            return Ok(delivery::Audience::Others);
        }
        let known = profile(soc, registry)?.map(|profile| profile.android).unwrap_or_default();
        let named = known.into_iter();
        let chips = named
            .map(|chip| delivery::ChipName { manufacturer: chip.manufacturer, model: chip.model })
            .collect();
        Ok(delivery::Audience::Chips(chips))
    };
    let variants = bundle.manifest().variants.iter();
    variants.map(|variant| Ok((variant.soc.to_string(), of(&variant.soc)?))).collect()
}

/// Returns the facts in the profiles of a bundle's chips. Missing facts stay visible as such.
fn facts(bundle: &Bundle, registry: &ProfileRegistry) -> BTreeMap<String, BTreeMap<String, String>> {
    let of = |soc: &str| {
        let facts = profile(soc, registry).ok().flatten().map(|profile| profile.facts).unwrap_or_default();
        facts.into_iter().map(|fact| (fact.name, fact.value)).collect()
    };
    let variants = bundle.manifest().variants.iter();
    variants.map(|variant| (variant.soc.to_string(), of(&variant.soc))).collect()
}
