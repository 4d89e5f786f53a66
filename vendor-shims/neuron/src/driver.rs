//! The opened library, with the data that an instance keeps about it.

use std::sync::Arc;

use crate::artefact::Maker;
use crate::failure::Result;
use crate::library::Library;
use crate::soc::Soc;

#[derive(Debug)]
pub struct Driver {
    library: Arc<Library>,
    maker: Maker,
}

impl Driver {
    /// Creates a driver for an open library.
    pub fn of(library: Arc<Library>) -> Arc<Driver> {
        let version = library.version();
        let maker = Maker {
            version: [version.major, version.minor, version.patch],
            magic: library.magic(),
            simulator: library.simulator().map(|simulator| match simulator.name.is_empty() {
                true => "without a name".to_owned(),
                false => simulator.name.clone(),
            }),
        };
        Arc::new(Driver { library, maker })
    }

    /// Returns the driver for a chip. A simulator then emulates the chip, with the library version
    /// that the chip's profile names.
    ///
    /// # Errors
    /// The errors of [`Library::playing`].
    pub fn playing(&self, soc: &Soc) -> Result<Arc<Driver>> {
        Ok(Driver::of(self.library.playing(soc)?))
    }

    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Returns the description of the library that is stored in artefacts.
    pub fn maker(&self) -> &Maker {
        &self.maker
    }
}
