//! The opened library, with the data that an instance keeps about it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::artefact::Maker;
use crate::failure::Result;
use crate::library::{Library, LibraryChoice};
use crate::lower::Lowering;
use crate::soc::Soc;

/// Settings of an instance.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Value of the option `library`.
    pub library: Option<PathBuf>,
    /// Value of the option `stand-in`.
    pub stand_in: Option<PathBuf>,
    /// How entries are lowered.
    pub lowering: Lowering,
}

#[derive(Debug)]
pub struct Driver {
    library: Arc<Library>,
    maker: Maker,
}

impl Driver {
    /// Opens the library by the search rule.
    ///
    /// # Errors
    /// The reason why no library was found, or why the one found cannot be used.
    pub fn open(settings: &Settings) -> Result<Arc<Driver>> {
        let choice = LibraryChoice::here(settings.library.clone(), settings.stand_in.clone());
        Ok(Driver::of(Library::open(&choice)?))
    }

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
