//! The chips this shim knows by name, and how a phone says which one it is.

use shardwright_shim_npu::ShimError;

/// A chip.
#[derive(Debug, PartialEq, Eq)]
pub struct Soc {
    /// As the vendor's tools want it: lower case.
    pub name: &'static str,
    /// What it is sold as.
    pub title: &'static str,
    /// What weights of 4 bits per channel meet here.
    pub four_bits_per_channel: FourBits,
}

/// Whether weights of 4 bits with a scale per channel may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FourBits {
    /// From the adapter version on that has a type for them.
    ByVersion,
    /// Refused at any size whatever the adapter: reported of this chip.
    Refused,
}

macro_rules! socs {
    ($($name:literal $title:literal $four:ident;)*) => {
        /// Every chip.
        pub const SOCS: &[Soc] =
            &[$(Soc { name: $name, title: $title, four_bits_per_channel: FourBits::$four }),*];
    };
}

// Names are those Google's compiler plugin takes.
socs! {
    "mt6853" "Dimensity 720" ByVersion;
    "mt6877" "Dimensity 900 family" ByVersion;
    "mt6878" "Dimensity 7300" ByVersion;
    "mt6879" "Dimensity 930 family" ByVersion;
    "mt6886" "Dimensity 7200" ByVersion;
    "mt6893" "Dimensity 1200" ByVersion;
    "mt6895" "Dimensity 8100" ByVersion;
    "mt6897" "Dimensity 8300" ByVersion;
    "mt6983" "Dimensity 9000" ByVersion;
    "mt6985" "Dimensity 9200" ByVersion;
    "mt6989" "Dimensity 9300" Refused;
    "mt6991" "Dimensity 9400" ByVersion;
    "mt6993" "Dimensity 9500" ByVersion;
    "mt8171" "Kompanio 838 family" ByVersion;
    "mt8188" "Genio 700" ByVersion;
    "mt8189" "Genio 720 family" ByVersion;
}

/// Other names phones give themselves.
const ALIASES: &[(&str, &str)] = &[("mt8792", "mt6897")];

/// Ways a phone tells its chip, the most telling first; any of them may be missing or hold an alias.
pub const PROPERTIES: [&str; 5] = [
    "ro.board.platform",
    "ro.vendor.mediatek.platform",
    "ro.soc.model",
    "ro.hardware",
    "ro.hardware.chipname",
];

impl Soc {
    /// The chip of a name; none for another vendor's.
    ///
    /// # Errors
    /// [`ShimError::UnsupportedSoc`] for a name of this vendor that is not known.
    pub fn by_name(name: &str) -> Result<Option<&'static Soc>, ShimError> {
        let lower = name.to_ascii_lowercase();
        let Some(digits) =
            lower.strip_prefix("mt").map(|rest| rest.bytes().take_while(u8::is_ascii_digit).take(4).count())
        else {
            return Ok(None);
        };
        if digits < 4 {
            return Ok(None);
        }
        // `MT6989W/CZA` is an MT6989.
        let wanted = &lower[..6];
        let wanted = ALIASES.iter().find(|(alias, _)| *alias == wanted).map_or(wanted, |(_, name)| name);
        match SOCS.iter().find(|soc| soc.name == wanted) {
            Some(soc) => Ok(Some(soc)),
            None => Err(ShimError::UnsupportedSoc {
                soc: name.to_owned(),
                reason: "nothing is known of it".to_owned(),
                help: "chips are named as MediaTek prints them, `mt6989`; aliases and suffixes are understood",
            }),
        }
    }

    /// The chip of a phone by its system properties; none where they tell nothing that is known.
    pub fn of_properties(property: impl Fn(&str) -> Option<String>) -> Option<&'static Soc> {
        PROPERTIES.iter().find_map(|name| Soc::by_name(property(name)?.trim()).ok().flatten())
    }

    /// The chip of this phone; none elsewhere. **Untried**: no phone was at hand.
    pub fn of_this_machine() -> Option<&'static Soc> {
        Soc::of_properties(system_property)
    }
}

#[cfg(target_os = "android")]
fn system_property(name: &str) -> Option<String> {
    let name = std::ffi::CString::new(name).ok()?;
    let mut value = [0u8; libc::PROP_VALUE_MAX as usize];
    // SAFETY: the name ends with a zero byte, and there is room for the longest value and its zero byte.
    let length = unsafe { libc::__system_property_get(name.as_ptr(), value.as_mut_ptr().cast()) };
    let value = value.get(..usize::try_from(length).ok()?)?;
    (!value.is_empty()).then(|| String::from_utf8_lossy(value).into_owned())
}

#[cfg(not(target_os = "android"))]
fn system_property(_name: &str) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_any_case_with_their_suffixes() {
        let name = |text: &str| Soc::by_name(text).map(|soc| soc.map(|soc| soc.name));
        assert_eq!(name("mt6989"), Ok(Some("mt6989")));
        assert_eq!(name("MT6989W/CZA"), Ok(Some("mt6989")));
        assert_eq!(name("MT8792"), Ok(Some("mt6897")));
        assert_eq!(name("sm8850"), Ok(None));
        assert_eq!(name("mt"), Ok(None));
        assert_eq!(name("mtk-é989"), Ok(None));
        assert!(matches!(name("mt6000"), Err(ShimError::UnsupportedSoc { .. })));
    }

    #[test]
    fn a_phone_is_known_by_whichever_property_it_has() {
        let of = |pairs: &[(&str, &str)]| {
            Soc::of_properties(|name| {
                pairs.iter().find(|(held, _)| *held == name).map(|(_, value)| (*value).to_owned())
            })
            .map(|soc| soc.name)
        };
        assert_eq!(of(&[("ro.soc.model", "MT8792"), ("ro.board.platform", "mt6897")]), Some("mt6897"));
        assert_eq!(of(&[("ro.vendor.mediatek.platform", "MT6993 ")]), Some("mt6993"));
        assert_eq!(of(&[("ro.board.platform", ""), ("ro.hardware", "mt6989")]), Some("mt6989"));
        assert_eq!(of(&[("ro.board.platform", "mt6000"), ("ro.hardware", "qcom")]), None);
        assert_eq!(of(&[]), None);
    }
}
