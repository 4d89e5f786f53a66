//! An example of a policy to copy: preferences for a plan, as settings of the solver.
//!
//! **Job.** The head stays on the CPU. The first and the last layer of the decoder have weights of
//! 8 bits, and so have the second matrices of the MLPs between them. The decoder is cut into at
//! most as many shards as the option `most-shards` allows. The solver chooses the cuts and
//! everything else.
//!
//! **Not its job.** It does not search. `solver::solve` does, and `learn::revise` after a refusal.
//! `example-even` is a planner without the solver.

use shardwright_planner::solver::{Goal, Settings, WantedFormat, solve};
use shardwright_planner::{
    Attempt, Description, FormatTuple, Level, OptionDescription, Plan, Planner, Refusal, RefusalKind,
    Request, learn, log,
};

/// The planner with this policy.
#[derive(Debug)]
pub struct Policy;

shardwright_planner::export_planner!(Policy);

/// Weight format at both ends of the decoder, and of one role between them, if it is available.
const FINE: &str = "w8-per-channel";
/// The role, as an example. A real policy uses the roles that its measurements name.
const ROLE: &str = "mlp-output";

impl Planner for Policy {
    fn describe() -> Description {
        Description {
            name: "example-policy".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "the head on the CPU, 8 bits at both ends of the decoder and in the MLPs between"
                .to_owned(),
            options: vec![OptionDescription {
                name: "most-shards".to_owned(),
                values: "1..".to_owned(),
                summary: "maximum number of shards of the decoder".to_owned(),
            }],
        }
    }

    fn make_plan(request: &Request) -> Result<Plan, Refusal> {
        Ok(solve(request, &settings(request)?)?.into_plan(request))
    }

    fn revise(request: &Request, _previous: &Plan, history: &[Attempt]) -> Result<Plan, Refusal> {
        learn::revise(request, history, &settings(request)?)
    }
}

/// Translates the policy into settings of the solver.
fn settings(request: &Request) -> Result<Settings, Refusal> {
    // 8 bits only there: the order of formats counts more than time.
    let mut settings = Settings { order: vec![Goal::Targets, Goal::Formats], ..Settings::default() };
    let cpu = (0_u32..).zip(&request.targets).find(|(_, target)| target.kind == "cpu");
    if let (Some(head), Some((cpu, _))) = (request.component_named("head"), cpu) {
        settings.place.push((head, cpu));
    }
    let Some(decoder) = request.component_named("decoder") else { return Ok(settings) };
    let layers = request.model.components[decoder as usize].layer_count();
    let fine = request.weight_format_named(FINE);
    let mut want = |first: u32, end: u32, role: Option<&str>| {
        let (role, format) = (role.map(str::to_owned), FINE.to_owned());
        settings.wanted.push(WantedFormat { component: decoder, first, end, role, format });
    };
    if request.formats.iter().any(|tuple| Some(tuple.weights) == fine && tuple.roles.is_empty()) {
        want(0, 1, None);
        want(layers.saturating_sub(1), layers, None);
    } else {
        log(Level::Info, "weights of 8 bits are not offered: the ends of the decoder use other formats");
    }
    let has_role =
        |tuple: &FormatTuple| tuple.roles.iter().any(|own| own.role == ROLE && Some(own.format) == fine);
    if layers > 2 && request.formats.iter().any(has_role) {
        want(1, layers - 1, Some(ROLE));
    } else {
        log(Level::Info, format!("no formats with 8 bits in {ROLE} are offered, or no layers need them"));
    }
    if let Some(text) = request.option("most-shards") {
        let most = text.parse().ok().filter(|&most| most > 0).ok_or_else(|| {
            let message = format!("option `most-shards` is `{text}`, expected a number above zero");
            Refusal::new(RefusalKind::InvalidRequest, message).with("option", "most-shards")
        })?;
        settings.most_shards.push((decoder, most));
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use shardwright_planner::RoleFormat;
    use shardwright_planner::testing::RequestBuilder;

    use super::*;

    /// Returns a request with ten layers on a chip and the CPU, in 32, 4 and 8 bits.
    fn request() -> RequestBuilder {
        RequestBuilder::decoder(10).target("cpu", "cpu").formats("w4-per-channel", 1, 8).formats(FINE, 1, 4)
    }

    fn at_most(builder: RequestBuilder, shards: &str) -> Request {
        let option = ("most-shards".to_owned(), shards.to_owned());
        builder.change(|request| request.options.push(option)).build()
    }

    /// Returns the shards of the decoder, each with the names of its layers' weight formats.
    fn decoder(request: &Request, plan: &Plan) -> Vec<(u32, u32, Vec<String>)> {
        let name = |formats: &u32| request.weight_format(*formats, "other").unwrap().name.clone();
        let decoder = plan.shards.iter().filter_map(|shard| shard.segment(1));
        decoder.map(|part| (part.first, part.end, part.formats.iter().map(name).collect())).collect()
    }

    /// Returns formats with 8 bits at both ends.
    fn ends() -> Vec<String> {
        (0..10).map(|layer| if layer % 9 == 0 { FINE } else { "f32" }.to_owned()).collect()
    }

    #[test]
    fn the_ends_have_8_bits_and_the_head_is_on_the_cpu() {
        let request = request().build();
        let plan = Policy::make_plan(&request).unwrap();
        let found = decoder(&request, &plan);
        assert_eq!(found, [(0, 10, ends())]);
        let head = plan.shards.last().unwrap();
        assert_eq!(request.targets[head.target as usize].name, "cpu");
    }

    #[test]
    fn between_the_ends_one_role_has_8_bits() {
        let request = RequestBuilder::decoder(10)
            .formats("w4-per-channel", 1, 8)
            .formats("w4-per-channel", 1, 7)
            .formats(FINE, 1, 4)
            .change(|request| {
                let format = request.weight_format_named(FINE).unwrap();
                request.formats[2].roles.push(RoleFormat { role: ROLE.to_owned(), format });
            })
            .build();
        let plan = Policy::make_plan(&request).unwrap();
        let decoder: Vec<u32> = plan
            .shards
            .iter()
            .filter_map(|shard| shard.segment(1))
            .flat_map(|own| own.formats.clone())
            .collect();
        let name = |formats: u32, role: &str| request.weight_format(formats, role).unwrap().name.clone();
        let roles = decoder.iter().map(|&formats| (name(formats, ROLE), name(formats, "attention-input")));
        let expected = (0..10).map(|layer| match layer % 9 {
            0 => (FINE.to_owned(), FINE.to_owned()),
            _ => (FINE.to_owned(), "w4-per-channel".to_owned()),
        });
        assert_eq!(roles.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn the_decoder_is_cut_no_finer_than_asked() {
        let one = at_most(request(), "1");
        let plan = Policy::make_plan(&one).unwrap();
        assert_eq!(decoder(&one, &plan), [(0, 10, ends())]);
        let cut = RequestBuilder::decoder(10).limit("npu", "ops", 400);
        let refusal = Policy::make_plan(&at_most(cut, "2")).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::Unsupported, "{}", refusal.message);
        let refusal = Policy::make_plan(&at_most(request(), "none")).unwrap_err();
        assert_eq!(refusal.kind, RefusalKind::InvalidRequest, "{}", refusal.message);
    }
}
