//! The store: results are the same as in memory, are found again and resumed, and are never trusted
//! unverified.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use shardwright_graph::{Graph, Weight};
use shardwright_models::Checkpoint;
use shardwright_quantisation::{
    MatrixInputs, MomentSums, Moments, Note, Recipe, Rounding, RowSource, SecondMoments, Store, TableFormats,
    quantise, quantise_weight,
};
use shardwright_test_checkpoints::{Random, Spec};
use shardwright_vocabulary::{
    ActivationFormat, DType, ErrorKind, FormatTuple, Result, StateFormat, Watch, WeightFormat,
};
use tempfile::TempDir;

use crate::formats::same;
use crate::support::{Synthetic, values, weight};

/// A watcher that records events and stops after some calls.
#[derive(Default)]
struct Follower {
    calls: usize,
    stop_after: Option<usize>,
    /// Notes of the finished work.
    notes: Vec<Note>,
    /// Texts to show at once.
    texts: Vec<String>,
    /// The last progress, in thousandths.
    last: u32,
}

impl Follower {
    /// Quantises a weight in a store.
    fn weight(
        &mut self,
        store: &Store,
        source: &dyn RowSource,
        format: WeightFormat,
        moments: Option<&Moments>,
    ) -> Result<Weight> {
        let mut notes = Vec::new();
        let made = store.weight(source, format, moments, self, &mut notes);
        self.notes.extend(notes);
        made
    }
}

impl Watch for Follower {
    fn progress(&mut self, per_mille: u32, _: &str) {
        self.calls += 1;
        self.last = per_mille;
    }

    fn note(&mut self, text: &str) {
        self.texts.push(text.to_owned());
    }

    fn cancelled(&self) -> bool {
        self.stop_after.is_some_and(|stop| self.calls > stop)
    }
}

fn synthetic() -> Synthetic {
    // Nine chunks, the last of them shorter.
    Synthetic { name: "layers.0.up".to_owned(), part: "up", shape: vec![2100, 1056], seed: 7 }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn in_memory(source: &dyn RowSource, format: WeightFormat) -> Weight {
    quantise_weight(source, format, Rounding::Nearest, &mut ()).unwrap()
}

#[test]
fn the_store_gives_what_memory_gives() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path().join("made/here")).unwrap();
    for &format in WeightFormat::MADE {
        let mut follower = Follower::default();
        let made = follower.weight(&store, &synthetic(), format, None).unwrap();
        assert!(same(&made, &in_memory(&synthetic(), format)), "{format}");
        assert_eq!(made.part, "up");
        assert_eq!(follower.last, 1000, "{format}");
        assert!(follower.notes.is_empty());
    }
    assert_eq!(files(store.directory()).len(), WeightFormat::MADE.len());

    // A new store, like that of another process, finds the files.
    let again = Store::open(store.directory()).unwrap();
    for &format in WeightFormat::MADE {
        let mut follower = Follower::default();
        let found = follower.weight(&again, &synthetic(), format, None).unwrap();
        assert!(same(&found, &in_memory(&synthetic(), format)), "{format}");
        assert_eq!(follower.notes, [Note::Found { weight: "layers.0.up".to_owned() }]);
        assert_eq!(follower.last, 1000);
    }
}

/// Returns moments of the inputs of the matrices in this file.
fn moments(identity: u8, width: usize) -> Moments {
    let mut sums = MomentSums::new(width);
    sums.add(&values(3 * width * width, 9));
    let of = ["layers.0.up", "w"].map(|weight| (weight.to_owned(), "x".to_owned())).into();
    let inputs =
        MatrixInputs { of, widths: BTreeMap::from([("x".to_owned(), width)]), gradients: BTreeMap::new() };
    Moments::new([identity; 32], inputs, BTreeMap::from([("x".to_owned(), sums.finish())]))
}

#[test]
fn whatever_decides_the_content_makes_another_file() {
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let made = |source: &dyn RowSource, moments: Option<&Moments>| {
        store.weight(source, WeightFormat::W4PerChannel, moments, &mut (), &mut Vec::new()).unwrap();
        files(directory.path()).len()
    };
    let of = values(64 * 64, 1);
    let plain = weight(&[64, 64], DType::F32, &of);
    assert_eq!(made(&plain, None), 1);
    assert_eq!(made(&plain, None), 1);
    let mut changed = of.clone();
    changed[4095] += 1e-6;
    assert_eq!(made(&weight(&[64, 64], DType::F32, &changed), None), 2);
    assert_eq!(made(&weight(&[32, 128], DType::F32, &of), None), 3);
    assert_eq!(made(&Weight { name: "v".to_owned(), ..plain.clone() }, None), 4);
    assert_eq!(made(&plain, Some(&moments(1, 64))), 5);
    assert_eq!(made(&plain, Some(&moments(1, 64))), 5);
    assert_eq!(made(&plain, Some(&moments(2, 64))), 6);
    // Without observed inputs, values are rounded to the nearest, as without moments.
    assert_eq!(made(&plain, Some(&Moments::new([3; 32], MatrixInputs::default(), BTreeMap::new()))), 6);
    assert_eq!(made(&weight(&[64, 64], DType::Bf16, &of), None), 7);
    let quantised = in_memory(&plain, WeightFormat::W8PerChannel);
    assert_eq!(made(&quantised, None), 8);
    // The part does not affect the content.
    assert_eq!(made(&Weight { part: "head", ..plain }, None), 8);
}

#[test]
fn what_is_unusual_about_moments_is_said() {
    let plain = weight(&[4, 3], DType::F32, &values(12, 1));
    let noted = |rows: &[f32]| {
        let mut sums = MomentSums::new(3);
        sums.add(rows);
        let of = BTreeMap::from([("w".to_owned(), "x".to_owned())]);
        let inputs =
            MatrixInputs { of, widths: BTreeMap::from([("x".to_owned(), 3)]), gradients: BTreeMap::new() };
        let moments = Moments::new([1; 32], inputs, BTreeMap::from([("x".to_owned(), sums.finish())]));
        let directory = TempDir::new().unwrap();
        let notes = || {
            let mut follower = Follower::default();
            let store = Store::open(directory.path()).unwrap();
            follower.weight(&store, &plain, WeightFormat::W4PerChannel, Some(&moments)).unwrap();
            let [others, found] = [false, true].map(|found| {
                let is_found = |note: &&Note| matches!(note, Note::Found { .. }) == found;
                follower.notes.iter().filter(is_found).cloned().collect::<Vec<_>>()
            });
            (others, found.len())
        };
        let (first, again) = (notes(), notes());
        // A reused weight reports them too.
        assert_eq!((first.1, again.1, &again.0), (0, 1, &first.0));
        first.0
    };
    assert_eq!(noted(&[1.0, 0.5, 2.0]), []);
    assert_eq!(noted(&[]), [Note::NotSeen { weight: "w".to_owned() }]);
    assert_eq!(noted(&[1.0, f32::NAN, 2.0]), [Note::NotSeen { weight: "w".to_owned() }]);
}

#[test]
fn a_weight_that_is_kept_needs_no_factors() {
    let plain = weight(&[4, 3], DType::F32, &values(12, 1));
    let mut sums = MomentSums::new(3);
    sums.add(&[1.0, 0.5, 2.0]);
    let folder = TempDir::new().unwrap();
    let file = SecondMoments::path(folder.path(), "x");
    sums.finish().write(&file).unwrap();
    let directory = TempDir::new().unwrap();
    let make = || {
        let of = BTreeMap::from([("w".to_owned(), "x".to_owned())]);
        let inputs =
            MatrixInputs { of, widths: BTreeMap::from([("x".to_owned(), 3)]), gradients: BTreeMap::new() };
        let moments = Moments::in_folder([1; 32], inputs, folder.path());
        let store = Store::open(directory.path()).unwrap();
        store.weight(&plain, WeightFormat::W4PerChannel, Some(&moments), &mut (), &mut Vec::new())
    };
    let made = make().unwrap();
    // The moments are gone, but the stored weight does not need them.
    std::fs::remove_file(file).unwrap();
    assert!(same(&make().unwrap(), &made));
    std::fs::remove_dir_all(directory.path()).unwrap();
    let error = make().unwrap_err();
    assert!(error.is_not_found() && error.to_string().contains(".moments"), "{error}");
}

#[test]
fn ended_anywhere_and_continued_the_bytes_are_the_same() {
    let moments = moments(1, 1056);
    for (format, moments) in [
        (WeightFormat::W8PerChannel, None),
        (WeightFormat::W4Block32, None),
        (WeightFormat::W8PerTensor, None),
        (WeightFormat::W4PerChannel, Some(&moments)),
    ] {
        let factors = moments.and_then(|moments| moments.factors("layers.0.up").unwrap());
        let rounding = Rounding::by(factors.as_ref());
        let wanted = quantise_weight(&synthetic(), format, rounding, &mut ()).unwrap();
        let directory = TempDir::new().unwrap();
        let (mut continued, mut runs) = (0, 0);
        loop {
            // A new store each time, like that of a new process.
            let store = Store::open(directory.path()).unwrap();
            let mut follower = Follower { stop_after: Some(2), ..Follower::default() };
            let made = follower.weight(&store, &synthetic(), format, moments);
            continued += follower.notes.iter().filter(|note| matches!(note, Note::Continued { .. })).count();
            match made {
                Ok(made) => {
                    assert!(same(&made, &wanted), "{format}");
                    break;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                    assert_eq!(error.place(), Some("weight `layers.0.up`"));
                }
            }
            runs += 1;
            // A tensor-wide scale requires two passes, which are not stored.
            if runs == 6 {
                follower = Follower::default();
                follower.weight(&store, &synthetic(), format, moments).unwrap();
            }
            assert!(runs < 20);
        }
        let uninterrupted = TempDir::new().unwrap();
        Store::open(uninterrupted.path())
            .unwrap()
            .weight(&synthetic(), format, moments, &mut (), &mut Vec::new())
            .unwrap();
        let bytes = |directory: &TempDir| fs::read(&files(directory.path())[0]).unwrap();
        assert!(bytes(&directory) == bytes(&uninterrupted), "{format}");
        assert_eq!(files(directory.path()).len(), 1);
        assert!(continued > 1 || format == WeightFormat::W8PerTensor, "{format}: {continued}");
    }
}

/// Returns the file of a weight whose first chunks are made.
fn begun(directory: &Path, format: WeightFormat) -> PathBuf {
    let store = Store::open(directory).unwrap();
    let mut follower = Follower { stop_after: Some(5), ..Follower::default() };
    let made = follower.weight(&store, &synthetic(), format, None);
    assert_eq!(made.unwrap_err().kind(), ErrorKind::Cancelled);
    let files = files(directory);
    assert_eq!(files.len(), 1);
    files[0].clone()
}

#[test]
fn a_file_in_the_making_is_believed_chunk_by_chunk() {
    let mut random = Random::new(5, "unfinished");
    let wanted = in_memory(&synthetic(), WeightFormat::W4Block32);
    for round in 0..24 {
        let directory = TempDir::new().unwrap();
        let path = begun(directory.path(), WeightFormat::W4Block32);
        let mut bytes = fs::read(&path).unwrap();
        match round % 4 {
            0 if round % 8 == 0 => bytes.truncate(random.below(bytes.len() as u64) as usize),
            0 => bytes.push(1),
            // Bytes that are never rewritten: the gap after the data, and the hash that only a
            // scale of the whole tensor uses.
            1 if round % 8 == 1 => bytes[4096 + 2100 * 528 + round] ^= 8,
            1 => *bytes.last_mut().unwrap() ^= 1,
            _ => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
        }
        fs::write(&path, &bytes).unwrap();
        let store = Store::open(directory.path()).unwrap();
        let made = Follower::default().weight(&store, &synthetic(), WeightFormat::W4Block32, None).unwrap();
        assert!(same(&made, &wanted), "round {round}");
    }
}

#[test]
fn every_changed_bit_of_a_whole_file_is_found_and_the_file_made_again() {
    let directory = TempDir::new().unwrap();
    let source = Synthetic { shape: vec![6, 64], ..synthetic() };
    let mut random = Random::new(6, "bits");
    for format in [WeightFormat::W4Block32, WeightFormat::W8PerTensor, WeightFormat::F16] {
        let store = Store::open(directory.path()).unwrap();
        let wanted = store.weight(&source, format, None, &mut (), &mut Vec::new()).unwrap();
        let path = files(directory.path())[0].clone();
        let sound = fs::read(&path).unwrap();
        // All bytes at the front of the header, and samples elsewhere: data, scales, hashes, gaps.
        let samples: Vec<_> = (0..80).map(|_| random.below(sound.len() as u64) as usize).collect();
        let places = (0..56).chain((56..700).step_by(7)).chain(samples);
        for at in places {
            let mut bytes = sound.clone();
            bytes[at] ^= 1 << random.below(8);
            assert_remade(directory.path(), &path, &bytes, &source, format, &wanted);
            assert!(fs::read(&path).unwrap() == sound);
        }
        for length in [0, 1, 47, 4095, 4096, sound.len() - 1] {
            assert_remade(directory.path(), &path, &sound[..length], &source, format, &wanted);
        }
        let longer: Vec<u8> = sound.iter().copied().chain([0]).collect();
        assert_remade(directory.path(), &path, &longer, &source, format, &wanted);
        fs::remove_file(path).unwrap();
    }
}

fn assert_remade(
    directory: &Path,
    path: &Path,
    bytes: &[u8],
    source: &dyn RowSource,
    format: WeightFormat,
    wanted: &Weight,
) {
    fs::write(path, bytes).unwrap();
    let mut follower = Follower::default();
    let made = follower.weight(&Store::open(directory).unwrap(), source, format, None).unwrap();
    assert!(same(&made, wanted));
    assert!(matches!(&follower.notes[..], [Note::Remade { .. }]), "{:?}", follower.notes);
}

/// Returns the reported reason after a change to the file's bytes.
fn reason(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let directory = TempDir::new().unwrap();
    let source = Synthetic { shape: vec![6, 64], ..synthetic() };
    let store = |follower: &mut Follower| {
        let store = Store::open(directory.path()).unwrap();
        follower.weight(&store, &source, WeightFormat::W8PerTensor, None).unwrap();
    };
    store(&mut Follower::default());
    let path = files(directory.path())[0].clone();
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    let mut follower = Follower::default();
    store(&mut follower);
    match &follower.notes[..] {
        [Note::Remade { reason, weight, path: named }] => {
            assert_eq!((weight.as_str(), named), ("layers.0.up", &path));
            reason.clone()
        }
        notes => panic!("{notes:?}"),
    }
}

#[test]
fn what_is_wrong_with_a_file_is_said() {
    for (what, said) in [
        (reason(|bytes| bytes[0] = b'X'), "not a file of quantised weights"),
        (reason(|bytes| bytes.clear()), "not a file of quantised weights"),
        (reason(|bytes| bytes[8] = 9), "version 9 of the format, this program reads version 1"),
        (reason(|bytes| bytes[60] ^= 1), "byte 16: damaged: the header's hash"),
        (reason(|bytes| bytes[4096] ^= 1), "byte 4096: damaged: the hash of the chunk"),
        (reason(|bytes| bytes[8192] ^= 1), "byte 8192: damaged: the hash of the scale"),
        (reason(|bytes| bytes[8191] ^= 1), "the gap after the part before"),
        (reason(|bytes| bytes[12288] ^= 1), "byte 12288: damaged: the table of hashes"),
        (reason(|bytes| bytes.truncate(12300)), "expected 12352 bytes by its header, got 12300"),
    ] {
        assert!(what.contains(said), "{what}");
    }
    let directory = TempDir::new().unwrap();
    let one = Synthetic { shape: vec![6, 64], ..synthetic() };
    let other = Synthetic { seed: 8, ..synthetic() };
    let store = Store::open(directory.path()).unwrap();
    store.weight(&one, WeightFormat::W8PerTensor, None, &mut (), &mut Vec::new()).unwrap();
    let first = files(directory.path())[0].clone();
    store.weight(&other, WeightFormat::W8PerTensor, None, &mut (), &mut Vec::new()).unwrap();
    let second = files(directory.path()).into_iter().find(|path| *path != first).unwrap();
    fs::copy(&second, &first).unwrap();
    let mut follower = Follower::default();
    let store = Store::open(directory.path()).unwrap();
    follower.weight(&store, &one, WeightFormat::W8PerTensor, None).unwrap();
    let [Note::Remade { reason, .. }] = &follower.notes[..] else { panic!("{:?}", follower.notes) };
    assert!(reason.contains("expected `layers.0.up`") && reason.contains(", got `"), "{reason}");
}

#[test]
fn errors_of_the_store_say_what_helps() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, b"x").unwrap();
    let error = Store::open(file.join("below")).unwrap_err();
    let below = file.join("below");
    assert_eq!((error.kind(), error.place()), (ErrorKind::Missing, below.to_str()), "{error}");
}

/// Several programs start at the same time. One makes the weight and the others reuse it.
#[test]
fn who_comes_second_waits_and_takes_what_the_first_made() {
    let directory = TempDir::new().unwrap();
    let path = begun(directory.path(), WeightFormat::W8PerChannel);
    let locked = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    locked.lock().unwrap();

    // Waiting can be cancelled.
    let mut impatient = Follower { stop_after: Some(3), ..Follower::default() };
    let store = Store::open(directory.path()).unwrap();
    let error = impatient.weight(&store, &synthetic(), WeightFormat::W8PerChannel, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    let path = path.display();
    let waiting = format!("waiting for another program, which makes `layers.0.up` in {path}");
    assert_eq!(impatient.texts, [waiting.as_str()], "said once");

    // Another program stops half-way and loses its lock. Its work is continued.
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let mut follower = Follower::default();
            let store = Store::open(directory.path()).unwrap();
            let made = follower.weight(&store, &synthetic(), WeightFormat::W8PerChannel, None).unwrap();
            (same(&made, &in_memory(&synthetic(), WeightFormat::W8PerChannel)), follower)
        });
        std::thread::sleep(std::time::Duration::from_millis(300));
        drop(locked);
        let (same, Follower { notes, texts, .. }) = second.join().unwrap();
        assert!(same);
        assert_eq!(texts, [waiting.as_str()]);
        assert!(matches!(&notes[..], [Note::Continued { .. }]), "{notes:?}");
    });

    // All at once, each with its own store like separate programs. None fails, and the weight is
    // made once.
    let directory = TempDir::new().unwrap();
    let notes: Vec<Vec<Note>> = std::thread::scope(|scope| {
        let start = || {
            let mut follower = Follower::default();
            let store = Store::open(directory.path()).unwrap();
            follower.weight(&store, &synthetic(), WeightFormat::W4Block32, None).unwrap();
            follower.notes
        };
        let all: Vec<_> = (0..6).map(|_| scope.spawn(start)).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let found = |notes: &&Vec<Note>| notes.iter().any(|note| matches!(note, Note::Found { .. }));
    assert_eq!(notes.iter().filter(found).count(), 5, "{notes:?}");
    assert_eq!(files(directory.path()).len(), 1);
}

/// Weights are only data, but whoever may write them controls the model's output.
#[cfg(unix)]
#[test]
fn what_others_may_have_written_is_made_again() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let parent = TempDir::new().unwrap();
    let directory = parent.path().join("weights");
    let make = || {
        let mut follower = Follower::default();
        let store = Store::open(&directory).unwrap();
        let made = follower.weight(&store, &synthetic(), WeightFormat::W4Block32, None).unwrap();
        assert!(same(&made, &in_memory(&synthetic(), WeightFormat::W4Block32)));
        follower.notes
    };
    assert!(make().is_empty());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = files(&directory)[0].clone();
    assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));

    set(&file, 0o660);
    let notes = make();
    assert!(
        matches!(&notes[..], [Note::Remade { reason, .. }] if reason.contains("written by others")),
        "{notes:?}"
    );
    assert_eq!(mode(&file), 0o600);
    let moved = parent.path().join("moved");
    fs::rename(&file, &moved).unwrap();
    symlink(&moved, &file).unwrap();
    let notes = make();
    assert!(
        matches!(&notes[..], [Note::Remade { reason, .. }] if reason.contains("a symbolic link")),
        "{notes:?}"
    );

    // A file in progress is started again.
    let begun = begun(parent.path().join("begun").as_path(), WeightFormat::W4Block32);
    set(&begun, 0o666);
    let mut follower = Follower::default();
    let store = Store::open(begun.parent().unwrap()).unwrap();
    follower.weight(&store, &synthetic(), WeightFormat::W4Block32, None).unwrap();
    assert!(follower.notes.is_empty(), "{:?}", follower.notes);
    assert_eq!(files(store.directory()).iter().map(|path| mode(path)).collect::<Vec<_>>(), [0o600]);

    // In a directory that others may write to, no file is reused and none stays.
    set(&directory, 0o777);
    let notes = make();
    assert!(
        matches!(&notes[..], [Note::Disbelieved { reason }] if reason.contains("written by others")),
        "{notes:?}"
    );
    assert_eq!(files(&directory), [file]);
}

/// Files that were started but never finished are removed eventually.
#[test]
fn abandoned_files_are_removed() {
    let parent = TempDir::new().unwrap();
    let old = begun(&parent.path().join("a"), WeightFormat::W8PerChannel);
    let directory = old.parent().unwrap();
    let weeks_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(15 * 24 * 3600);
    let age = |path: &Path| {
        fs::OpenOptions::new().write(true).open(path).unwrap().set_modified(weeks_ago).unwrap();
    };
    age(&old);
    // A locked file is in use.
    let locked = fs::File::open(&old).unwrap();
    locked.lock().unwrap();
    Store::open(directory).unwrap();
    assert!(old.exists());
    drop(locked);
    let whole = directory.join("0.weight");
    fs::write(&whole, b"").unwrap();
    age(&whole);
    Store::open(directory).unwrap();
    assert_eq!(files(directory), [whole]);
}

fn graph_of(spec: &Spec) -> Graph {
    let directory = TempDir::new().unwrap();
    spec.write(directory.path()).unwrap();
    Checkpoint::open(directory.path()).unwrap().into_graph()
}

#[test]
fn a_graph_from_the_store_is_the_graph_from_memory() {
    let graph = graph_of(&Spec::gemma4());
    let formats = FormatTuple::uniform(WeightFormat::W4PerChannel, ActivationFormat::A16, StateFormat::F32);
    let tables = TableFormats {
        embedding: Some(WeightFormat::W4PerChannel),
        per_layer: Some(WeightFormat::W8PerChannel),
    };
    let recipe = Recipe::new(&graph, &formats, tables);
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let mut follower = Follower::default();
    let stored = store.graph(&graph, &recipe, &mut follower, &mut Vec::new()).unwrap();
    let in_memory = quantise(&graph, &recipe, &mut (), &mut Vec::new()).unwrap();
    assert_eq!(follower.last, 1000);
    for (a, b) in stored.weights.iter().zip(&in_memory.weights) {
        assert!(same(a, b), "{}", a.name);
        let zero = |weight: &Weight| weight.quantisation.as_ref().map(|quantisation| quantisation.zero_point);
        assert_eq!(zero(a), zero(b));
    }
    for (a, b) in stored.assets.iter().zip(&in_memory.assets) {
        assert!(same(&a.table, &b.table), "{}", a.name);
    }
    // A head that is tied to the embedding, in the same format, uses the same file.
    let head = stored.weights.iter().find(|weight| weight.part == "head").unwrap();
    assert_eq!(head.data.bytes().as_ptr(), stored.assets[0].table.data.bytes().as_ptr());
    let matrices = graph.matrices().iter().filter(|matrix| **matrix).count();
    assert_eq!(files(directory.path()).len(), matrices + 1);
}
