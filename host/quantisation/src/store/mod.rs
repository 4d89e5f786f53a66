//! Quantised weights in a directory: written in chunks, memory-mapped, resumed after an
//! interruption.

mod file;
mod header;
mod mapped;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use shardwright_files::{hex, private_files};

use crate::compensation::{MomentWarning, PassedOn};
use crate::job::{ARITHMETIC, Job, Rounding, Target};
use crate::recipe::{Meter, apply, in_memory};
use crate::{Moments, Note, Recipe, RowSource};
use file::{Unfinished, open_whole};
use header::{Header, VERSION, hash};
use shardwright_graph::{Graph, Weight};
use shardwright_vocabulary::{At, Error, ErrorKind, Result, Watch, WeightFormat};

/// Extension of complete files.
const WHOLE: &str = "weight";
/// Extension of files in progress.
const UNFINISHED: &str = "unfinished";
/// Name prefix of the private folder in a directory that is not trusted.
const OWN: &str = ".own-";
const MAKE_AGAIN: &str = "remove the file: the next run makes it again";
/// Unfinished files of this age are removed. They probably belong to a model that is not made any
/// more, and they are as large as finished ones.
const UNFINISHED_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// A directory of quantised weights.
///
/// A file is named by a hash over everything that determines its content: name, shape and identity
/// of the source, format, moments and the version of the arithmetic. Valid files are reused,
/// whatever created them. A file from an earlier run is resumed at the chunk where that run
/// stopped, by cancellation, an error, or the end of the process. The bytes are the same in every
/// case.
///
/// Memory: two chunks per thread, at most 32, independent of the size of a weight. A chunk is a
/// megabyte of values plus its result. Mapped sources and results are released after reading. Gemma
/// 4 E2B and E4B at their real shapes, in 8 bits and in 4 bits with blocks of 32, peaked below 12
/// MiB on two threads (`examples/real_shapes.rs`).
#[derive(Debug)]
pub struct Store {
    directory: PathBuf,
    /// Weights made or verified by this instance, by address. A tied head and embedding in one
    /// format share a file.
    open: Mutex<BTreeMap<String, (Weight, Vec<MomentWarning>)>>,
    /// Set if other users may write to the directory: the reason, and the temporary folder used
    /// instead, which is removed with this instance.
    instead: Option<(Error, tempfile::TempDir)>,
}

impl Store {
    /// Opens a store in a directory, which is created if missing. A directory that other users may
    /// write to is not trusted. Then everything is made again in a temporary folder, and
    /// [`Note::Disbelieved`] reports it.
    pub fn open(directory: impl Into<PathBuf>) -> Result<Self> {
        let directory = directory.into();
        private_files::create_folder(&directory).at(directory.display())?;
        let instead = match private_files::expect_folder(&directory) {
            Ok(()) => None,
            Err(error) if error.kind() == ErrorKind::Invalid => {
                let mut folder = tempfile::Builder::new();
                #[cfg(unix)]
                folder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
                Some((error, folder.prefix(OWN).tempdir_in(&directory).at(directory.display())?))
            }
            Err(error) => return Err(error.at(directory.display())),
        };
        sweep(&directory);
        let directory = instead.as_ref().map_or(directory.clone(), |(_, folder)| folder.path().to_owned());
        Ok(Store { directory, open: Mutex::default(), instead })
    }

    /// Returns the directory of the store.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Quantises a graph with a recipe, maps the results from the store, and adds to `notes`.
    /// Unchanged weights are shared, not copied. Vectors (such as norm scales) are made in memory.
    pub fn graph(
        &self,
        graph: &Graph,
        recipe: &Recipe,
        watch: &mut dyn Watch,
        notes: &mut Vec<Note>,
    ) -> Result<Graph> {
        self.report_distrust(notes);
        apply(graph, recipe, watch, notes, &mut |source, target, moments, meter| match target {
            Target::Matrix(format) if source.shape.len() > 1 => self.make(source, format, moments, meter),
            _ => in_memory(source, target, moments, meter),
        })
    }

    /// Quantises one weight, maps it from the store, and adds to `notes`. Without `moments`, values
    /// are rounded to the nearest.
    pub fn weight(
        &self,
        source: &dyn RowSource,
        format: WeightFormat,
        moments: Option<&Moments>,
        watch: &mut dyn Watch,
        notes: &mut Vec<Note>,
    ) -> Result<Weight> {
        self.report_distrust(notes);
        let total = Job::new(source, Target::Matrix(format), PassedOn::Nowhere)?.planned().bytes();
        self.make(source, format, moments, &mut Meter { watch, notes, done: 0, total })
    }

    fn report_distrust(&self, notes: &mut Vec<Note>) {
        let distrust = self.instead.as_ref();
        notes.extend(distrust.map(|(error, _)| Note::Disbelieved { reason: error.to_string() }));
    }

    fn make(
        &self,
        source: &dyn RowSource,
        format: WeightFormat,
        moments: Option<&Moments>,
        meter: &mut Meter<'_>,
    ) -> Result<Weight> {
        let name = source.name();
        let target = Target::Matrix(format);
        let moments = moments.filter(|_| target.is_rounded());
        let passed_on = moments.map_or(PassedOn::Nowhere, |moments| moments.passed_on(name));
        let job = Job::new(source, target, passed_on)?;
        let address = address(source, format, moments.filter(|_| passed_on != PassedOn::Nowhere))?;
        let bytes = job.planned().bytes();
        let say = |remarks: &[MomentWarning], meter: &mut Meter<'_>| {
            meter.notes.extend(remarks.iter().map(|remark| remark.of(name)));
        };
        let known = self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&address).cloned();
        if let Some((weight, remarks)) = known {
            say(&remarks, meter);
            meter.made(name, bytes)?;
            // Another part may have the same content.
            return Ok(Weight { part: source.part(), ..weight });
        }
        let path = self.directory.join(format!("{address}.{WHOLE}"));
        let header = Header::new(&job, format, address.clone());
        let found = |made: (Weight, Vec<MomentWarning>), meter: &mut Meter<'_>| {
            say(&made.1, meter);
            meter.notes.push(Note::Found { weight: name.to_owned() });
            meter.made(name, bytes)?;
            self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(address.clone(), made.clone());
            Ok(made.0)
        };
        if let Some(made) = find(&path, &header, &job, meter)? {
            return found(made, meter);
        }
        // Compute the factors only now: with 12,288 columns that takes 15 s on two cores, and a
        // stored weight does not need them.
        let (factors, remarks) = match moments {
            Some(moments) => moments.factors_and_remarks(name)?,
            None => Default::default(),
        };
        let job = job.by(Rounding::by(factors.as_ref()))?;
        loop {
            let unfinished = self.directory.join(format!("{address}.{UNFINISHED}"));
            let mut waited = false;
            let mut wait = |path: &Path| {
                if !std::mem::replace(&mut waited, true) {
                    let path = path.display();
                    meter.watch.note(&format!("waiting for another program, which makes `{name}` in {path}"));
                }
                meter.made(name, 0)
            };
            let opened = Unfinished::open(unfinished, header.clone(), &job, &mut wait)?;
            let Some(mut unfinished) = opened else {
                // Another process finished it meanwhile.
                match find(&path, &header, &job, meter)? {
                    Some(made) => return found(made, meter),
                    None => continue,
                }
            };
            let mut made = unfinished.made_bytes();
            if made > 0 {
                meter.notes.push(Note::Continued {
                    weight: name.to_owned(),
                    chunks: unfinished.made() as u64,
                    of: job.chunks() as u64,
                });
            }
            meter.made(name, made)?;
            unfinished.complete(&mut |bytes| {
                made += bytes;
                meter.made(name, bytes)
            })?;
            unfinished.finish(&path, &remarks)?;
            // A scale of the whole tensor belongs to no chunk.
            meter.made(name, bytes.saturating_sub(made))?;
            let made = open_whole(&path, &header, &job)?;
            say(&made.1, meter);
            self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(address, made.clone());
            return Ok(made.0);
        }
    }
}

/// Removes old unfinished files that are not being written.
fn sweep(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let begun = path.extension().is_some_and(|extension| extension == UNFINISHED);
        let modified = || entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let is_old = |time: SystemTime| time.elapsed().is_ok_and(|age| age > UNFINISHED_AGE);
        let instead = entry.file_name().to_string_lossy().starts_with(OWN);
        if instead && modified().is_some_and(is_old) && private_files::expect_folder(&path).is_ok() {
            // Left over from a killed process.
            let _ = std::fs::remove_dir_all(&path);
        }
        if begun && modified().is_some_and(is_old) {
            // If a process resumes the file now, it has it locked. A failed removal only costs
            // space.
            let free = private_files::open_file(&path).is_ok_and(|(file, _)| file.try_lock().is_ok());
            let _ = free.then(|| std::fs::remove_file(&path));
        }
    }
}

/// Returns the stored weight and its remarks, if it exists. Treats an invalid file as missing, with
/// a note.
fn find(
    path: &Path,
    header: &Header,
    job: &Job<'_>,
    meter: &mut Meter<'_>,
) -> Result<Option<(Weight, Vec<MomentWarning>)>> {
    match open_whole(path, header, job) {
        Ok(made) => Ok(Some(made)),
        Err(fault) if fault.is_not_found() => Ok(None),
        Err(fault) if fault.kind() == ErrorKind::Invalid => {
            meter.notes.push(Note::Remade {
                weight: header.weight.clone(),
                path: path.to_owned(),
                reason: fault.to_string(),
            });
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}

/// Creates the error for a file whose content cannot be used.
fn unusable(message: String) -> Error {
    Error::invalid(message).with_help(MAKE_AGAIN)
}

/// Creates the error for a file whose bytes changed after they were written.
fn damaged(offset: u64, what: &str) -> Error {
    unusable(format!("damaged: {what}")).at(format!("byte {offset}"))
}

/// Computes a hash over everything that determines the content of a file.
fn address(source: &dyn RowSource, format: WeightFormat, moments: Option<&Moments>) -> Result<String> {
    let length = |count: usize| (count as u64).to_le_bytes();
    let shape: Vec<u8> = source.shape().iter().flat_map(|extent| extent.to_le_bytes()).collect();
    let moments: Vec<u8> = moments.map(|moments| moments.identity().to_vec()).unwrap_or_default();
    let name = source.name().as_bytes();
    Ok(hex::encode(&hash(&[
        &VERSION.to_le_bytes(),
        &ARITHMETIC.to_le_bytes(),
        &length(name.len()),
        name,
        &length(shape.len()),
        &shape,
        &length(format.name().len()),
        format.name().as_bytes(),
        &source.identity()?,
        &length(moments.len()),
        &moments,
    ])))
}
