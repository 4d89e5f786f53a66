use shardwright_vocabulary::{Pass, TargetKind};

use super::{FoundProfile, ProfileError, ProfileRegistry};

/// Names of chains that are not those of targets, beside those of towers.
const RESERVED: [&str; 2] = ["primary", "cpu"];

impl ProfileRegistry {
    /// The profiles that one falls back to, in its order.
    ///
    /// # Errors
    ///
    /// That of a directory that cannot be read, and [`ProfileError::Invalid`] of this profile where
    /// one of them is not there, is named twice, is for a CPU, or is called as a bundle's chains
    /// are.
    pub fn fallbacks(&self, of: &FoundProfile) -> Result<Vec<FoundProfile>, ProfileError> {
        let mut found: Vec<FoundProfile> = Vec::new();
        for name in &of.profile.fallback {
            let invalid = |why: String| ProfileError::Invalid {
                source_file: of.source.clone(),
                reason: format!("it falls back to `{name}`: {why}"),
            };
            let other = match self.find(name) {
                Err(error @ ProfileError::Directory(_)) => return Err(error),
                found => found.map_err(|error| invalid(error.to_string()))?,
            };
            let own = &other.profile.name;
            let is_known = |known: &FoundProfile| known.profile.name == *own;
            if is_known(of) {
                return Err(invalid("that is itself".to_owned()));
            }
            if found.iter().any(is_known) {
                return Err(invalid(format!("{own} is named twice")));
            }
            if other.profile.kind == TargetKind::Cpu {
                return Err(invalid("that is for a CPU, which takes over last whatever is named".to_owned()));
            }
            if RESERVED.contains(&own.as_str()) || Pass::ALL.iter().any(|pass| pass.name() == own) {
                return Err(invalid("chains of a bundle have that name; rename it".to_owned()));
            }
            found.push(other);
        }
        Ok(found)
    }
}
