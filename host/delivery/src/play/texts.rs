//! The text files of a project with AI packs.

use std::fmt::Write;

use super::plan::Group;
use super::{AiPackReport, DeliveryMode, rules};

/// The file that defines the groups. It belongs next to the app's own `build.gradle`.
pub(super) const TARGETING_FILE: &str = "device_targeting_config.xml";

/// Content of the file for a group without a volume.
pub(super) const NO_VOLUME: &str = "Devices of this group need nothing of this pack.\n";

/// Formats `build.gradle` of a pack's module.
pub(super) fn module(name: &str, mode: DeliveryMode) -> String {
    format!(
        "plugins {{\n    id 'com.android.ai-pack'\n}}\n\naiPack {{\n    packName = \"{name}\"\n    \
         dynamicDelivery {{\n        deliveryType = \"{}\"\n    }}\n}}\n",
        mode.name()
    )
}

/// Formats the assignment of devices to groups. Play defines the group of all others.
pub(super) fn targeting(groups: &[Group]) -> String {
    let mut text = "<config:device-targeting-config\n    \
         xmlns:config=\"http://schemas.android.com/apk/config\">\n"
        .to_owned();
    for group in groups.iter().filter(|group| group.name != rules::OTHER) {
        let _ =
            writeln!(text, "  <config:device-group name=\"{}\">\n    <config:device-selector>", group.name);
        for chip in &group.chips {
            let (manufacturer, model) = (escaped(&chip.manufacturer), escaped(&chip.model));
            let _ = writeln!(
                text,
                "      <config:system-on-chip manufacturer=\"{manufacturer}\" model=\"{model}\"/>"
            );
        }
        text.push_str("    </config:device-selector>\n  </config:device-group>\n");
    }
    text.push_str("</config:device-targeting-config>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// Formats instructions for the app's own files, and for opening the delivered volumes.
pub(super) fn readme(report: &AiPackReport) -> String {
    let is_targeted = report.audiences.iter().any(|audience| !audience.chips.is_empty());
    let names: Vec<&str> = report.packs.iter().map(|pack| pack.name.as_str()).collect();
    let listed = |before: &str, behind: &str| {
        let each: Vec<String> = names.iter().map(|name| format!("{before}{name}{behind}")).collect();
        each.join(", ")
    };
    let mut text =
        "# AI packs\n\n| devices | device group | bytes | files | bundle |\n|---|---|---|---|---|\n"
            .to_owned();
    for audience in &report.audiences {
        let chips: Vec<String> =
            audience.chips.iter().map(|chip| format!("{} {}", chip.manufacturer, chip.model)).collect();
        let devices = if chips.is_empty() { "all others".to_owned() } else { chips.join(", ") };
        let bundle = audience.bundle.as_deref().unwrap_or("none");
        let (group, bytes, volumes) = (&audience.group, audience.bytes, audience.volumes);
        let _ = writeln!(text, "| {devices} | `{group}` | {bytes} | {volumes} | {bundle} |");
    }
    let _ = write!(
        text,
        "\n1. Copy the folders {} beside the app's module.\n\n2. `settings.gradle`:\n\n   ```groovy\n   \
         include {}\n   ```\n\n3. `build.gradle` of the app's module:\n\n   ```groovy\n   android {{\n       \
         assetPacks = [{}]\n",
        listed("`", "`"),
        listed("':", "'"),
        listed("\":", "\""),
    );
    if is_targeted {
        let _ = write!(
            text,
            "       bundle {{\n           deviceTargetingConfig = file('{TARGETING_FILE}')\n           \
             deviceGroup {{\n               enableSplit = true\n               defaultGroup = \"{}\"\n           \
             }}\n       }}\n",
            rules::OTHER
        );
    }
    text.push_str("   }\n   ```\n");
    if is_targeted {
        let _ = write!(
            text,
            "\n4. Copy `{TARGETING_FILE}` into the app's module, and write into `gradle.properties`:\n\n   \
             ```properties\n   android.experimental.enableDeviceTargetingConfigApi=true\n   ```\n"
        );
    }
    text.push_str(
        "\nDevice groups need version 8.10 of the Android Gradle plugin, packs alone 8.8. Shims, the worker and\n\
         planners are code: they belong into the app's own module, never into a pack.\n\n",
    );
    text.push_str(match report.mode {
        DeliveryMode::InstallTime => {
            "Packs of this mode are part of the app's packages, uncompressed: open\n\
             `AssetManager.openFd(\"model/volume-1.swb\")`, and further volumes, as sections of files.\n"
        }
        DeliveryMode::FastFollow | DeliveryMode::OnDemand => {
            "Packs of this mode lie in folders of their own: for each,\n\
             `AiPackManager.getPackLocation(name).assetsPath()` and behind it `model/volume-N.swb`.\n"
        }
    });
    text.push_str("A file that is not there is a volume that this device does not need.\n");
    for notice in &report.notices {
        let _ = write!(text, "\nNote: {notice}.\n");
    }
    text
}
