//! The opened library with everything an instance holds of it.

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
    /// The option `library`.
    pub library: Option<PathBuf>,
    /// The option `stand-in`.
    pub stand_in: Option<PathBuf>,
    /// How entries are written.
    pub lowering: Lowering,
}

/// An opened library.
#[derive(Debug)]
pub struct Driver {
    library: Arc<Library>,
    maker: Maker,
}

impl Driver {
    /// Opens the library by its rule.
    ///
    /// # Errors
    /// Why no library was found, or what is wrong with the one found.
    pub fn open(settings: &Settings) -> Result<Arc<Driver>> {
        let choice = LibraryChoice::here(settings.library.clone(), settings.stand_in.clone());
        Ok(Driver::of(Library::open(&choice)?))
    }

    /// A driver of a library that is open.
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

    /// The driver for a chip: a simulator plays the chip, and the version of the library that its
    /// profile names.
    ///
    /// # Errors
    /// Those of [`Library::playing`].
    pub fn playing(&self, soc: &Soc) -> Result<Arc<Driver>> {
        Ok(Driver::of(self.library.playing(soc)?))
    }

    /// The library.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Its description of itself, as stored in artefacts.
    pub fn maker(&self) -> &Maker {
        &self.maker
    }
}
