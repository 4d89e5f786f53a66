use shardwright_vocabulary::{Pass, Result, TargetKind};

use super::{FoundProfile, ProfileRegistry};

/// Names of chains that targets and towers cannot have.
const RESERVED: [&str; 2] = ["primary", "cpu"];

impl ProfileRegistry {
    /// Returns the fallback profiles of a profile, in its order.
    ///
    /// # Errors
    ///
    /// Fails if a directory cannot be read. Fails with this profile as the place if a fallback is
    /// unknown, is listed twice, is for a CPU, or has a name reserved for chains of a bundle.
    pub fn fallbacks(&self, of: &FoundProfile) -> Result<Vec<FoundProfile>> {
        if of.profile.fallback.is_empty() {
            return Ok(Vec::new());
        }
        let all = self.read()?;
        let mut found: Vec<FoundProfile> = Vec::new();
        for name in &of.profile.fallback {
            let invalid = |why: String| super::invalid(&of.source, format!("fallback `{name}`: {why}"));
            let other = all.find(name).map_err(|error| invalid(error.to_string()))?;
            let own = &other.profile.name;
            let is_known = |known: &FoundProfile| known.profile.name == *own;
            if is_known(of) {
                return Err(invalid("it is the profile itself".to_owned()));
            }
            if found.iter().any(is_known) {
                return Err(invalid(format!("`{own}` is listed twice")));
            }
            if other.profile.kind == TargetKind::Cpu {
                return Err(invalid("a CPU cannot be listed, as it is always the last fallback".to_owned()));
            }
            if RESERVED.contains(&own.as_str()) || Pass::ALL.iter().any(|pass| pass.name() == own) {
                return Err(invalid("the name is reserved for chains of a bundle".to_owned()));
            }
            found.push(other);
        }
        Ok(found)
    }
}
