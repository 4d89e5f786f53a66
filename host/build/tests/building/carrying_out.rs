//! Carries plans out on the C example, and tests the results and every way in which it can fail.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;

use shardwright_build::{
    ArtefactStore, BuildError, BuildSite, BuiltShard, BundleStore, EntryMenu, ModelFormats, NoArtefactStore,
    PlanHeading, PrimitiveCount, SharedWriter, ShimJudge, TargetExecutor, TargetOffer, compile_plan,
    forecast, report_plan,
};
use shardwright_bundle::BundleWriter;
use shardwright_graph::{ConstantFormat, EntryOptions, Graph, WeightData};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::feedback::Feedback;
use shardwright_planning::request::Request;
use shardwright_quantisation::{Recipe, quantise};
use shardwright_shims::ShimRegistry;
use shardwright_vocabulary::{
    Error, ErrorClass, ErrorKind, Flag, FlagSchema, FlagStage, FlagType, Limit, PlannerIdentity, Provenance,
    Watch,
};
use tempfile::TempDir;

use crate::common::{checked, fixture, offer, plan, request, root, weighed};

/// Opens the C example under its own name, with a limit on the nodes of an entry.
fn executor(most_ops: Option<u32>) -> (TempDir, TargetExecutor) {
    let folder = tempfile::tempdir().unwrap();
    let source = root().join("vendor-shims/template/c");
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-O1", "-fPIC", "-shared", "-I"]).arg(root().join("vendor-shims/abi/include"));
    compile.args(most_ops.map(|most| format!("-DSW_TEMPLATE_OPS_LIMIT={most}")));
    compile.args(["shim.c", "error.c", "program.c", "kernels.c"].map(|file| source.join(file)));
    compile.arg("-o").arg(folder.path().join("template_c.so")).arg("-lm");
    assert!(compile.status().expect("a C compiler is needed for this test").success());
    let manifest = "template_c.shim.json";
    std::fs::copy(source.join(manifest), folder.path().join(manifest)).unwrap();
    let registry = ShimRegistry::builder().directory(folder.path()).build();
    let instance = registry.open("template-c", "chip", &[]).unwrap();
    (
        folder,
        TargetExecutor {
            instance,
            device: "cpu".to_owned(),
            detail: None,
            simulated: false,
            loads: false,
            is_target: true,
        },
    )
}

/// A model, and a shim to build it for.
struct Site {
    graph: Graph,
    offers: Vec<TargetOffer>,
    executors: Vec<TargetExecutor>,
    request: Request,
    _folder: TempDir,
}

impl Site {
    /// Creates a site whose shim answers for itself.
    fn new(name: &str, most_ops: Option<u32>) -> Self {
        let (folder, executor) = executor(most_ops);
        let judge = ShimJudge::new(executor.instance.clone(), executor.device.clone());
        Site::with(fixture(name), vec![offer("chip", judge)], executor, folder)
    }

    /// Creates a site with a cost table of primitives, as for a plan made without the shim.
    fn planned_without_shim(name: &str) -> Self {
        let (folder, executor) = executor(None);
        Site::with(fixture(name), vec![offer("chip", PrimitiveCount::default())], executor, folder)
    }

    fn with(graph: Graph, offers: Vec<TargetOffer>, executor: TargetExecutor, folder: TempDir) -> Self {
        let request = request(&graph, &offers, &EntryMenu::usual(&graph, 64));
        Site { graph, offers, executors: vec![executor], request, _folder: folder }
    }

    fn plan(&self, cuts: &[u32]) -> CheckedPlan {
        checked(&self.request, plan(&self.request, cuts))
    }

    fn build(&self, plan: &CheckedPlan, watch: &mut dyn Watch) -> Result<Vec<BuiltShard>, BuildError> {
        let Site { graph, request, offers, executors, .. } = self;
        let formats = &ModelFormats::stored(graph);
        let site = BuildSite { formats, request, offers, executors, options: EntryOptions::default() };
        compile_plan(&site, plan, &mut NoArtefactStore, watch)
    }

    fn fails(&self, plan: &CheckedPlan) -> BuildError {
        self.build(plan, &mut ()).expect_err("the plan cannot be carried out")
    }

    /// Returns the error of a failure that no other plan avoids.
    fn ends(&self, plan: &CheckedPlan) -> Error {
        ended(self.fails(plan))
    }
}

fn ended(error: BuildError) -> Error {
    match error {
        BuildError::Other(error) => error,
        refused => panic!("{refused:?}"),
    }
}

fn detail<'f>(feedback: &'f Feedback, name: &str) -> Option<&'f str> {
    feedback.details.iter().find(|detail| detail.name == name).map(|detail| detail.value.as_str())
}

#[test]
fn shards_are_built_in_the_order_of_the_plan() {
    let site = Site::new("gemma3_text", None);
    let built = site.build(&site.plan(&[2, 5]), &mut ()).unwrap();
    let names: Vec<_> = built.iter().map(|shard| shard.name.as_str()).collect();
    assert_eq!(names, ["embed", "decoder.0-2", "decoder.2-5", "decoder.5-7", "head"]);
    let layers: Vec<_> = built.iter().map(|shard| shard.segments.layers()).collect();
    assert_eq!(layers, [(0, 0), (0, 2), (2, 5), (5, 7), (0, 0)]);
    assert!(built.iter().all(|shard| shard.target == 0 && shard.rewritten.is_empty()), "{built:?}");
}

#[test]
fn a_compiler_that_refuses_gives_feedback() {
    let site = Site::new("gemma3_text", Some(100));
    let error = site.fails(&site.plan(&[]));
    let BuildError::Refused(feedback) = &error else { panic!("{error:?}") };
    assert_eq!(feedback.shard, Some(1), "the decoder is the second shard");
    assert_eq!(feedback.class, Some(ErrorClass::ResourceLimit));
    assert_eq!(detail(feedback, "limit"), Some("ops"));
    assert_eq!(detail(feedback, "max"), Some("100"));
    let value: u64 = detail(feedback, "value").unwrap().parse().unwrap();
    let most = site.plan(&[]).shards()[1].cost.ops;
    assert!(value > 100 && value <= most, "{value} of at most {most}");
    assert!(error.to_string().contains("decoder.0-7"), "{error}");
    let error = Error::from(error);
    assert!(error.kind() == ErrorKind::Planning && error.help().is_some(), "{error:?}");

    let halves = site.build(&site.plan(&[3]), &mut ()).unwrap();
    assert_eq!(halves.len(), 4, "what the refusal asks for is taken");
}

/// The table was made of primitives. When it comes to compiling, the shim lacks one of them.
#[test]
fn an_operation_the_shim_lacks_is_named() {
    let site = Site::planned_without_shim("gemma4_text");
    let error = site.fails(&site.plan(&[]));
    let BuildError::Refused(feedback) = &error else { panic!("{error:?}") };
    assert_eq!((feedback.shard, feedback.class), (Some(1), Some(ErrorClass::UnsupportedOp)));
    assert_eq!(detail(feedback, "op"), Some("transpose"));
    assert!(detail(feedback, "node").is_some() && detail(feedback, "reason").is_some(), "{feedback:?}");
    assert!(error.to_string().contains("per-layer-input"), "{error}");
}

#[test]
fn a_graph_that_is_not_what_the_table_promised_is_not_built() {
    let site = Site::planned_without_shim("gemma3_text");
    let error = site.ends(&site.plan(&[]));
    assert!(error.kind() == ErrorKind::Internal && error.help().is_some(), "{error:?}");
    let place = error.place().unwrap();
    assert!(place.starts_with("shard ") && place.contains(" at "), "{error}");
    let numbers = error.message().split(|c: char| !c.is_ascii_digit());
    let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
    let [promised, found] = numbers[..] else { panic!("{error}") };
    assert!(found < promised, "what was counted in primitives is less: {error}");
}

/// Limits apply to the compiled artefact, whatever the cost table promised.
#[test]
fn an_artefact_beyond_a_limit_is_refused_and_one_beyond_its_promise_is_reported() {
    let mut site = Site::new("gemma3_text", None);
    let plan = site.plan(&[]);
    let built = site.build(&plan, &mut ()).unwrap();
    assert!(built.iter().all(|shard| shard.unpromised_size.is_none()), "{built:?}");
    let found = built[1].artefact.payload().len() as u64;
    let loaded = found + plan.shards()[1].cost.state_bytes;
    assert!(found > 1 << 12 && loaded > found, "{found} {loaded}");
    for (name, value) in [("artefact-bytes", found), ("context-bytes", loaded)] {
        let limit = |value| vec![Limit::new(name, value, Provenance::Reported)];
        site.request.targets[0].limits = limit(value);
        site.build(&plan, &mut ()).unwrap();
        site.request.targets[0].limits = limit(value - 1);
        let error = site.fails(&plan);
        let BuildError::Refused(feedback) = &error else { panic!("{error:?}") };
        assert_eq!((feedback.shard, feedback.class), (Some(1), Some(ErrorClass::ResourceLimit)));
        let details = ["limit", "value", "max"].map(|what| detail(feedback, what).unwrap().to_owned());
        assert_eq!(details, [name.to_owned(), value.to_string(), (value - 1).to_string()]);
    }

    site.request.targets[0].limits.clear();
    let decoder = site.request.costs.iter().position(|row| row.kind == 1).unwrap();
    site.request.costs[decoder].artefact_bytes += 4 << 20;
    let wrong = site.plan(&[]);
    let built = site.build(&wrong, &mut ()).unwrap();
    let message = built[1].unpromised_size.as_deref().expect("four megabytes are missing");
    assert!(message.contains(&format!("decoder.0-7: its artefact has {found} bytes")), "{message}");
    assert!(built[0].unpromised_size.is_none() && built[2].unpromised_size.is_none());
    // The table makes no promise about a substitute for the target.
    site.request.targets[0].target.device = "the chip itself".to_owned();
    let built = site.build(&site.plan(&[]), &mut ()).unwrap();
    assert!(built.iter().all(|shard| shard.unpromised_size.is_none()));
}

#[test]
fn a_plan_of_another_model_is_not_built() {
    let mut site = Site::new("gemma3_text", None);
    let plan = site.plan(&[4]);
    // The architecture is the same, so everything before the missing layer fits.
    site.graph.components.iter_mut().for_each(|component| {
        component.layers = component.layers.min(6);
    });
    let error = site.ends(&plan);
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.to_string().contains("4..7") && error.to_string().contains('6'), "{error}");

    let mut site = Site::new("gemma3_text", None);
    let plan = site.plan(&[]);
    site.graph.components.remove(0);
    assert!(site.ends(&plan).to_string().contains("has no component `embed`"));
}

/// A planner may set a flag to any text that the schema accepts. Not every text can be passed to a
/// compiler.
#[test]
fn a_flag_that_cannot_be_written_down_is_an_error() {
    let mut site = Site::new("gemma3_text", None);
    site.request.targets[0].schema = vec![FlagSchema {
        name: "note".to_owned(),
        values: FlagType::Text { max_bytes: 64 },
        default: None,
        description: String::new(),
        stage: FlagStage::Compile,
    }];
    let mut flagged = plan(&site.request, &[]);
    flagged.shards[0].flags = vec![Flag { name: "note".to_owned(), value: "a\0b".to_owned() }];
    let flagged = checked(&site.request, flagged);
    let error = site.ends(&flagged);
    assert!(error.to_string().contains("note") && error.help().is_some(), "{error}");

    // A substitute is not the compiler that the flag is for, so the flag is not written.
    site.executors[0].is_target = false;
    site.build(&flagged, &mut ()).unwrap();
}

#[test]
fn a_shim_that_fails_otherwise_ends_the_build() {
    let mut site = Site::new("gemma3_text", None);
    site.executors[0].device = "elsewhere".to_owned();
    let error = site.ends(&site.plan(&[]));
    assert_eq!(error.kind(), ErrorKind::Shim);
    assert!(error.to_string().contains("elsewhere"), "{error}");
}

/// Cancels at the nth call.
struct Impatient {
    patience: Cell<u32>,
}

impl Watch for Impatient {
    fn cancelled(&self) -> bool {
        let left = self.patience.get();
        self.patience.set(left.saturating_sub(1));
        left == 0
    }
}

#[test]
fn a_build_can_be_stopped_between_shards_and_within_one() {
    let site = Site::new("gemma3_text", None);
    let plan = site.plan(&[3]);
    let mut finished = false;
    for patience in 0..2000 {
        match site.build(&plan, &mut Impatient { patience: Cell::new(patience) }) {
            Err(error) => {
                let error = ended(error);
                assert_eq!(error.kind(), ErrorKind::Cancelled, "asked {patience} times: {error:?}");
                assert!(!finished && error.help().is_none(), "{error:?}");
            }
            Ok(built) => {
                assert_eq!(built.len(), 4);
                assert!(patience > 4, "it was asked within shards too");
                finished = true;
                break;
            }
        }
    }
    assert!(finished);
}

const QUANTISED: &str = "w8-per-channel/a16/a16";

/// Sets one format tuple to choose from, and returns the counted model.
fn counted(site: &mut Site, formats: &str) -> ModelFormats {
    let formats = ModelFormats::counted(&site.graph, &[formats.parse().unwrap()]).unwrap();
    site.request.formats = formats.tuples().to_vec();
    formats
}

#[test]
fn integers_without_ranges_are_not_compiled() {
    let mut site = Site::planned_without_shim("gemma3_text");
    let formats = counted(&mut site, QUANTISED);
    let plan = site.plan(&[]);
    assert!(ModelFormats::needs_ranges(&plan));
    let Site { request, offers, executors, .. } = &site;
    let options = EntryOptions::default();
    let building = BuildSite { formats: &formats, request, offers, executors, options };
    let error =
        compile_plan(&building, &plan, &mut NoArtefactStore, &mut ()).expect_err("nothing was calibrated");
    let error = ended(error);
    assert_eq!(error.to_string(), format!("shard embed: {QUANTISED} needs calibrated ranges"));
    assert!(error.help().unwrap().contains("calibrate"), "{error}");
}

#[test]
fn only_constants_that_are_read_are_made_and_a_weight_that_cannot_be_is_named() {
    let mut site = Site::planned_without_shim("gemma3_text");
    let formats = counted(&mut site, "w8-per-channel");
    let plan = site.plan(&[]);
    let made = formats
        .made(&site.graph, &plan, None, |graph, weights| {
            assert!(weights.contains(&ConstantFormat::Stored) && weights.len() == graph.weights.len());
            let recipe = Recipe { weights, ..Recipe::default() };
            quantise(graph, &recipe, &mut (), &mut Vec::new())
        })
        .unwrap();
    assert!(made.graph(0).weights.iter().all(|weight| weight.data.is_present()));
    let quantised = made.graph(0).weights.iter().filter(|weight| weight.quantisation.is_some()).count();
    assert_eq!(quantised, site.graph.matrices().iter().filter(|is_matrix| **is_matrix).count());

    let mut broken = site.graph.clone();
    let matrix = broken.matrices().iter().position(|is_matrix| *is_matrix).unwrap();
    let name = broken.weights[matrix].name.clone();
    let bytes = vec![0xff; broken.weights[matrix].data.length()];
    broken.weights[matrix].data = WeightData::from_vec(bytes);
    let error = formats
        .made(&broken, &plan, None, |graph, weights| {
            let recipe = Recipe { weights, ..Recipe::default() };
            quantise(graph, &recipe, &mut (), &mut Vec::new())
        })
        .err()
        .expect("NaN is no integer");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert!(error.to_string().contains(&name) && error.help().is_some(), "{error}");
}

#[test]
fn a_shelf_recalls_what_it_kept_and_nothing_else() {
    let site = Site::new("gemma3_text", None);
    let plan = site.plan(&[3]);
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("bundle");
    let build_by = |executors: &[TargetExecutor], store: &mut dyn ArtefactStore| {
        let Site { graph, request, offers, .. } = &site;
        let formats = &ModelFormats::stored(graph);
        let site = BuildSite { formats, request, offers, executors, options: EntryOptions::default() };
        compile_plan(&site, &plan, store, &mut ())
    };
    let build = |store: &mut dyn ArtefactStore| build_by(&site.executors, store);
    let report = |shards: &[BuiltShard]| {
        let planner =
            PlannerIdentity { name: "by hand".to_owned(), version: "0".to_owned(), built_in: false };
        assert_eq!(shards.len(), 4);
        let heading = PlanHeading {
            soc: "chip".to_owned(),
            planner,
            refused_plans: 0,
            notices: Vec::new(),
            emulated_on: None,
        };
        report_plan(
            &site.request,
            &plan,
            forecast(&site.request, &plan, &site.graph, &weighed(&site.graph)),
            heading,
        )
    };
    let writer = SharedWriter::new(BundleWriter::create(&directory).unwrap());
    {
        let mut store = BundleStore::new(&writer).unwrap();
        let built = build(&mut store).unwrap();
        assert_eq!(store.recalled(), 0);
        let chain = store.chain(("primary", &[]), &site.request, &plan, &built, &report(&built)).unwrap();
        assert_eq!(chain.shards.len(), 4);

        let elsewhere = build(&mut NoArtefactStore).unwrap();
        let empty = SharedWriter::new(BundleWriter::create(folder.path().join("empty")).unwrap());
        let error = BundleStore::new(&empty)
            .unwrap()
            .chain(("primary", &[]), &site.request, &plan, &elsewhere, &report(&elsewhere))
            .unwrap_err();
        assert_eq!((error.kind(), error.place()), (ErrorKind::Shim, Some("shard embed")), "{error:?}");
        assert!(error.help().is_some());
    }
    drop(writer);

    let writer = SharedWriter::new(BundleWriter::create(&directory).unwrap());
    let mut store = BundleStore::new(&writer).unwrap();
    build(&mut store).unwrap();
    assert_eq!(store.recalled(), 4, "an interrupted build goes on");
    drop(store);
    // The work orders are the same, but the shim describes its device differently, for example how
    // it writes graphs.
    let other = TargetExecutor { detail: Some("written plainly".to_owned()), ..site.executors[0].clone() };
    let mut store = BundleStore::new(&writer).unwrap();
    build_by(&[other], &mut store).unwrap();
    assert_eq!(store.recalled(), 0, "what it makes is not what was made");
    drop(store);
    drop(writer);

    // A complete file that is not an artefact.
    let mut writer = BundleWriter::create(folder.path().join("wrong")).unwrap();
    let reference = writer.add_bytes(b"no artefact").unwrap();
    for key in keys(&directory) {
        writer.remember(&key, reference).unwrap();
    }
    let writer = SharedWriter::new(writer);
    let error = ended(build(&mut BundleStore::new(&writer).unwrap()).unwrap_err());
    assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{error:?}");
    drop(writer);

    // A file is in the place of the staging folder.
    let writer = SharedWriter::new(BundleWriter::create(folder.path().join("blocked")).unwrap());
    let staging = writer.lock().staging().unwrap();
    std::fs::remove_dir(&staging).unwrap();
    std::fs::write(&staging, b"").unwrap();
    let error = BundleStore::new(&writer).err().expect("no folder can be made there");
    assert!(error.to_string().contains(staging.to_str().unwrap()), "{error:?}");
}

/// Returns the keys under which an unfinished bundle remembers its artefacts.
fn keys(directory: &Path) -> Vec<String> {
    let journal = std::fs::read_to_string(directory.join(".unfinished")).unwrap();
    let key = |line: &str| Some(line[line.find("artefact of ")?..].to_owned());
    let keys: Vec<String> = journal.lines().filter_map(key).collect();
    assert!(!keys.is_empty(), "{journal}");
    keys
}
