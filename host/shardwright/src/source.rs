use std::path::{Path, PathBuf};

use shardwright_files::Section;

/// Place of a model. Paths, sections and lists of them convert into it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Source {
    /// Path of a bundle, in a directory, packed or an entry `archive!/entry`, or of a checkpoint.
    Path(PathBuf),
    /// Paths of all volumes of a packed bundle, such as the AI packs of an app, in any order. Each
    /// is a file or an entry `archive!/entry`.
    Volumes(Vec<PathBuf>),
    /// A packed bundle within an open file, such as an asset of an app, which the system provides
    /// as a descriptor with an offset and a length. Or all its volumes, in any order.
    Sections(Vec<Section>),
}

impl<P: AsRef<Path> + ?Sized> From<&P> for Source {
    fn from(path: &P) -> Self {
        Source::Path(path.as_ref().to_owned())
    }
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        Source::Path(path)
    }
}

impl From<String> for Source {
    fn from(path: String) -> Self {
        Source::Path(path.into())
    }
}

impl From<Vec<PathBuf>> for Source {
    fn from(volumes: Vec<PathBuf>) -> Self {
        Source::Volumes(volumes)
    }
}

impl From<Section> for Source {
    fn from(section: Section) -> Self {
        Source::Sections(vec![section])
    }
}

impl From<Vec<Section>> for Source {
    fn from(volumes: Vec<Section>) -> Self {
        Source::Sections(volumes)
    }
}
