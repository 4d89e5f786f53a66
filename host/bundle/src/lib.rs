//! The bundle: everything a model needs to run on one or several chips, without the files that were
//! only needed to build it.
//!
//! **Job.** The format of a bundle, in a directory or packed into one file. Write a bundle piece by
//! piece so that an interrupted build resumes, pack it, open it safely whatever it contains, verify
//! every byte, and identify any file of this project by its first bytes.
//!
//! **Not its job.** It does not interpret checkpoints, planners or shims: artefacts, plans and
//! texts are files whose bytes it stores and verifies. It does not decide what belongs in a bundle.
//!
//! # The format
//!
//! ```text
//! DIR/bundle.json      one line of JSON; the SHA-256 near its beginning covers every other byte:
//!                      {"shardwright-bundle":4,"sha256":"<64 digits>","manifest":{ … }}⏎
//! DIR/bundle.json.sig  its signature, if it is signed
//! DIR/files/<sha256>   every other file, named by the SHA-256 of its bytes
//! ```
//!
//! `bundle.schema.json` next to this crate's `Cargo.toml` is the JSON Schema of `bundle.json`. A
//! test compares it with the reader.
//!
//! In packed form, the same files are the entries of an uncompressed ZIP archive, each at a
//! multiple of 64 KiB ([`pack`]), or of several such volumes. The manifest has a variant for each
//! chip. Variants share files, and a subset of the variants can be packed as a bundle ([`Share`]).
//!
//! The manifest has one canonical form: members in the order of [`Manifest`], no blanks. A reader
//! rejects any other form, unknown members, and anything beyond its limits. The manifest names
//! every file by hash and length, so its own hash ([`Bundle::sha256`]) identifies the whole bundle.
//! Equal inputs give equal bytes, in every file and in the manifest. It names only files in `DIR`,
//! and links are not followed.
//!
//! # When bytes are verified
//!
//! | call | manifest | files |
//! |---|---|---|
//! | [`Bundle::open`] | every byte | exist, regular, right length, and up to [`TINY_FILE_BYTES`] every byte |
//! | [`Bundle::read`], [`Bundle::text`] | | every byte |
//! | [`Bundle::proved`], [`Bundle::map`], [`Bundle::assets_of`] | | every byte, or recorded by [`Proofs`] |
//! | [`Bundle::section`] | | exists, regular, right length: for display, not for running |
//! | [`Bundle::hashed`] | | reports how many bytes were hashed, and why the next opening hashes again |
//! | [`Bundle::verify_all`], [`inspect`] with [`Examine::Content`] | every byte | every byte |
//!
//! # Writing and reading a bundle
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use shardwright_bundle::{
//!     Bundle, BundleWriter, ChainEntry, Digest, Manifest, ModelIdentity, ShardEntry, Structure,
//!     TextFile, Variant,
//! };
//! use shardwright_vocabulary::{
//!     DType, FormatTuple, PlainName, PlannerIdentity, Result, ShimIdentity, Target, TargetKind,
//! };
//! use shardwright_graph::{Asset, ComponentKind, Segment, Weight, WeightData};
//!
//! fn compile(directory: &std::path::Path, table: &Asset) -> Result<Bundle> {
//!     let mut writer = BundleWriter::create(directory)?;
//!     let assets = vec![writer.add_asset(table)?];
//!
//!     // Record expensive results under a key, so that an interrupted build can reuse them.
//!     let work_order = Digest::of(b"the bytes of the work order");
//!     let key = format!("artefact {work_order} by cpu 0.1.0");
//!     let artefact = match writer.recall(&key) {
//!         Some(artefact) => artefact,
//!         None => {
//!             let compiled = writer.staging()?.join("compiled.swa");
//!             std::fs::write(&compiled, b"the output of a shim's compiler").unwrap();
//!             let artefact = writer.adopt(&compiled)?;
//!             writer.remember(&key, artefact)?;
//!             artefact
//!         }
//!     };
//!     let shard = ShardEntry {
//!         name: "embed".to_owned(),
//!         segments: Segment::whole(ComponentKind::Embed).into(),
//!         target: Target {
//!             name: "cpu".to_owned(),
//!             shim: "cpu".to_owned(),
//!             device: "cpu".to_owned(),
//!             kind: TargetKind::Cpu,
//!         },
//!         compiled_by: ShimIdentity {
//!             shim: "cpu".to_owned(),
//!             version: "0.1.0".to_owned(),
//!             device: "cpu".to_owned(),
//!             simulated: false,
//!         },
//!         formats: FormatTuple::F32.into(),
//!         entries: vec!["decode_1@512".parse().unwrap()],
//!         artefact,
//!         head: writer.add_bytes(b"the heads of the artefact")?,
//!         work_order,
//!         flags: Vec::new(),
//!         load_flags: Vec::new(),
//!         rewritten: Vec::new(),
//!         logits_softcap: None,
//!         placements: Vec::new(),
//!     };
//!     let chain = ChainEntry {
//!         name: "primary".to_owned(),
//!         emulated_on: None,
//!         within: Vec::new(),
//!         planner: None,
//!         request: writer.add_bytes(b"{\"the\":\"request\"}")?,
//!         plan: writer.add_bytes(b"{\"the\":\"plan\"}")?,
//!         report: None,
//!         speculation: None,
//!         shards: vec![shard],
//!     };
//!     let texts = BTreeMap::from([(TextFile::GenerationConfig, writer.add_bytes(b"{\"eos_token_id\":1}")?)]);
//!     writer.finish(&Manifest {
//!         program: "shardwright 0.1.0".to_owned(),
//!         model: ModelIdentity {
//!             name: "demo".to_owned(),
//!             family: "gemma4".to_owned(),
//!             checkpoint: Digest::of(b"settings and headers of the checkpoint"),
//!         },
//!         texts,
//!         tokenizer_index: None,
//!         goldens: None,
//!         variants: vec![Variant {
//!             soc: PlainName::new("generic")?,
//!             aliases: Vec::new(),
//!             calibration: None,
//!             planner: PlannerIdentity { name: "generic".to_owned(), version: "0.1.0".to_owned(), built_in: true },
//!             options: BTreeMap::from([("context".to_owned(), 512.into())]),
//!             // For a real model, use `Structure::of(&graph)`.
//!             structure: Structure {
//!                 hidden: 2,
//!                 vocabulary: 3,
//!                 context: 512,
//!                 per_layer_width: 0,
//!                 layers: 0,
//!                 components: vec![ComponentKind::Embed],
//!                 states: Vec::new(),
//!             },
//!             assets,
//!             chains: vec![chain],
//!             towers: Vec::new(),
//!             verifications: Vec::new(),
//!             notices: Vec::new(),
//!         }],
//!     })
//! }
//!
//! # let parent = tempfile::tempdir().unwrap();
//! # let directory = parent.path().join("demo.bundle");
//! let table = Asset {
//!     name: "embedding".to_owned(),
//!     table: Weight {
//!         name: "embed_tokens.weight".to_owned(),
//!         part: "embedding",
//!         shape: vec![3, 2],
//!         dtype: DType::F32,
//!         data: WeightData::from_vec(vec![0; 24]),
//!         quantisation: None,
//!     },
//!     redirect: Vec::new(),
//! };
//! let identity = compile(&directory, &table)?.sha256();
//!
//! // On the phone: no checkpoint, no planner, no compiler.
//! let bundle = Bundle::open(&directory)?;
//! assert_eq!(bundle.sha256(), identity);
//! let variant = bundle.manifest().variant("generic").expect("it was written");
//! let tables = bundle.assets_of(&variant.assets)?;
//! assert_eq!(tables[0].table.data.bytes(), table.table.data.bytes());
//! assert_eq!(bundle.text(TextFile::GenerationConfig)?.as_deref(), Some(&b"{\"eos_token_id\":1}"[..]));
//! for shard in &variant.chains[0].shards {
//!     let head = bundle.read(&shard.head)?;
//!     let artefact = bundle.proved(&shard.artefact)?;
//!     println!("{}: {} bytes of heads, {}", shard.name, head.len(), artefact.path().display());
//! }
//! bundle.verify_all(|_| ())?;
//! # Ok::<(), shardwright_vocabulary::Error>(())
//! ```
//!
//! To add a later result, such as a verification, create a writer on the same directory, start with
//! [`BundleWriter::previous`], add the file and finish with the extended manifest.
//!
//! Reading order: [`Manifest`], [`BundleWriter`], [`Bundle`], [`inspect()`], [`identify()`].

mod bundle;
mod digest;
mod envelope;
mod error;
mod file;
mod hash_statistics;
mod identify;
mod inspect;
mod journal;
mod layout;
mod manifest;
mod packed;
mod proofs;
mod share;
mod signed;
mod signer;
mod store;
mod unloaded_chains;
mod writer;

pub use bundle::{BEGIN_BYTES, Blocks, Bundle, FileLocation, FileProgress, Stray, TINY_FILE_BYTES};
pub use digest::Digest;
pub use file::{MappedFile, digest_of};
pub use hash_statistics::{Forgotten, Hashed};
pub use identify::{Kind, identify, is_bundle};
pub use inspect::{BundleInspection, Examine, FileState, InspectedFile, inspect};
pub use manifest::{
    AssetEntry, ChainEntry, FileReference, Manifest, Model, ModelIdentity, NAME_BYTES_MAX, ShardEntry,
    Structure, TEXT_BYTES_MAX, TextFile, TowerEntry, TwinEntry, Variant, Verification,
};
pub use packed::{PackReport, volume_name};
pub use proofs::Proofs;
pub use share::{Share, Volume, pack};
pub use signed::{SignatureReport, sign};
pub use signer::Signer;
pub use unloaded_chains::{Driver, LoadTrial, Unloaded, UnloadedChain, UnloadedFile};
pub use writer::BundleWriter;

/// Version of the format that is written. It is also the only supported one.
pub const FORMAT_VERSION: u32 = 4;
