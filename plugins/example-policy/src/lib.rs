//! A policy to copy: preferences for a plan, as settings of the solver.
//!
//! **Job.** The head stays on the CPU, the first and the last layer of the decoder have weights of
//! 8 bits, and the decoder is cut into as few shards as the option `most-shards` says. The solver
//! chooses the cuts and everything else.
//!
//! **Not its job.** To search: `solver::solve` does, and `learn::revise` after a refusal. A planner
//! without the solver is `example-even`.

use shardwright_planner::solver::{Goal, Settings, WantedFormat, solve};
use shardwright_planner::{
    Attempt, Description, FormatTuple, Level, OptionDescription, Plan, Planner, Refusal, RefusalKind,
    Request, learn, log,
};

/// The policy.
#[derive(Debug)]
pub struct Policy;

shardwright_planner::export_planner!(Policy);

/// Weight format at both ends of the decoder, where it is offered.
const ENDS: &str = "w8-per-channel";

impl Planner for Policy {
    fn describe() -> Description {
        Description {
            name: "example-policy".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "the head on the CPU, 8 bits at both ends of the decoder".to_owned(),
            options: vec![OptionDescription {
                name: "most-shards".to_owned(),
                values: "1..".to_owned(),
                summary: "shards of the decoder at most".to_owned(),
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

/// The policy, in the terms of the solver.
fn settings(request: &Request) -> Result<Settings, Refusal> {
    // 8 bits there and nowhere else: the formats named first count more than time.
    let mut settings = Settings { order: vec![Goal::Targets, Goal::Formats], ..Settings::default() };
    let cpu = (0_u32..).zip(&request.targets).find(|(_, target)| target.kind == "cpu");
    if let (Some(head), Some((cpu, _))) = (request.component_named("head"), cpu) {
        settings.place.push((head, cpu));
    }
    let Some(decoder) = request.component_named("decoder") else { return Ok(settings) };
    let layers = request.model.components[decoder as usize].layer_count();
    let ends = request.weight_format_named(ENDS);
    let is_ends = |tuple: &FormatTuple| Some(tuple.weights) == ends && tuple.roles.is_empty();
    if request.formats.iter().any(is_ends) {
        for first in [0, layers.saturating_sub(1)] {
            let end = first + 1;
            let format = ENDS.to_owned();
            settings.wanted.push(WantedFormat { component: decoder, first, end, role: None, format });
        }
    } else {
        log(Level::Info, "weights of 8 bits are not offered: the ends of the decoder are as its middle");
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
    use shardwright_planner::testing::RequestBuilder;

    use super::*;

    /// Ten layers on a chip and the CPU, in 32, 4 and 8 bits.
    fn request() -> RequestBuilder {
        RequestBuilder::decoder(10).target("cpu", "cpu").formats("w4-per-channel", 1, 8).formats(ENDS, 1, 4)
    }

    fn at_most(builder: RequestBuilder, shards: &str) -> Request {
        let option = ("most-shards".to_owned(), shards.to_owned());
        builder.change(|request| request.options.push(option)).build()
    }

    /// The shards of the decoder, each with the name of its layers' weight formats.
    fn decoder(request: &Request, plan: &Plan) -> Vec<(u32, u32, Vec<String>)> {
        let name = |formats: &u32| request.weight_format(*formats, "other").unwrap().name.clone();
        let decoder = plan.shards.iter().filter_map(|shard| shard.segment(1));
        decoder.map(|part| (part.first, part.end, part.formats.iter().map(name).collect())).collect()
    }

    /// 8 bits at both ends.
    fn ends() -> Vec<String> {
        (0..10).map(|layer| if layer % 9 == 0 { ENDS } else { "f32" }.to_owned()).collect()
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
