//! Verification that every step of a program stays within its operands, and its operands within
//! their places.

use super::bounds::at_most;
use super::*;
use crate::ops;

fn named(name: &str) -> Checked {
    at_most(name.len(), MAX_NAME, "bytes of a name")?;
    // A host receives a blank in place of a NUL, and two names must not become equal.
    ensure(!name.contains('\0'), || "a name contains a NUL".into())
}

impl Program {
    /// Checks that every access of every step is within its place and that no step writes memory
    /// that it reads. `constants` is the length of the weight section in bytes. The error includes
    /// the location.
    pub fn check(&self, constants: u64) -> Result<(), String> {
        at_most(self.entries.len(), MAX_ENTRIES, "entries")?;
        for (index, entry) in self.entries.iter().enumerate() {
            named(&entry.name)?;
            if self.entries[..index].iter().any(|other| other.name == entry.name) {
                return Err(format!("two entries are named `{}`", entry.name));
            }
            entry.check(constants).map_err(|reason| format!("entry `{}`: {reason}", entry.name))?;
        }
        Ok(())
    }
}

impl Entry {
    fn check(&self, constants: u64) -> Checked {
        ensure(self.rows >= 1 && self.rows <= u64::from(u32::MAX), || format!("{} rows", self.rows))?;
        ensure(self.arena <= MAX_VALUES, || format!("an arena of {} values", self.arena))?;
        at_most(self.ports.len(), MAX_PORTS, "bindings")?;
        at_most(self.steps.len(), MAX_STEPS, "steps")?;
        let mut ports = Vec::with_capacity(self.ports.len());
        for port in &self.ports {
            named(&port.name)?;
            ensure(port.shape.len() <= MAX_RANK, || {
                format!("binding `{}` of rank {}", port.name, port.shape.len())
            })?;
            ensure(port.encoding.is_consistent(), || {
                format!("binding `{}` is encoded as {:?}", port.name, port.encoding)
            })?;
            ports.push(product(&port.shape).map_err(|reason| format!("binding `{}`: {reason}", port.name))?);
        }
        let bounds = Bounds { entry: self, ports, constants };
        for (index, step) in self.steps.iter().enumerate() {
            ops::check(step, &bounds).map_err(|reason| format!("step {index}: {reason}"))?;
        }
        Ok(())
    }
}
