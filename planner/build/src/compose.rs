//! Composes a policy, which calls another planner, with that planner into one component.

use shardwright_vocabulary::{Error, Result};
use wasm_encoder::{
    ComponentBuilder, ComponentExportKind, ComponentTypeRef, ComponentValType, InstanceType,
    PrimitiveValType, TypeBounds,
};
use wasmparser::{Parser, Payload, Validator};

/// The interface that planners import and the host implements.
const HOST: &str = "shardwright:planner/host@0.2.0-draft";
const API: &str = "shardwright:planner/api@0.2.0-draft";

/// The levels of `log`, in the order of `wit/v0.2/planner.wit`.
const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// Composes a planner from `policy` (of the world `policy`) and `solver` (of the world `planner`),
/// which becomes the policy's planner import. Both log to the host.
///
/// # Errors
///
/// Fails for an invalid component, a policy that does not import another planner, and two
/// components that do not fit together.
pub fn compose(policy: &[u8], solver: &[u8]) -> Result<Vec<u8>> {
    let failed = |what: &str, reason: String| {
        Error::invalid(format!("the planners cannot be composed: {what}: {reason}")).with_help(
            "build the policy for the world `policy` of `wit/v0.2/planner.wit`, which imports another planner",
        )
    };
    for (what, component) in [("the policy", policy), ("the solver", solver)] {
        Validator::new().validate_all(component).map_err(|error| failed(what, error.to_string()))?;
    }
    if !imports_api(policy).map_err(|error| failed("the policy", error.to_string()))? {
        let reason = format!("it does not import `{API}`");
        return Err(failed("the policy", reason));
    }
    let mut whole = ComponentBuilder::default();
    let mut host = InstanceType::new();
    host.ty().defined_type().enum_type(LEVELS);
    host.export("level", ComponentTypeRef::Type(TypeBounds::Eq(0)));
    let parameters = [
        ("level", ComponentValType::Type(1)),
        ("message", ComponentValType::Primitive(PrimitiveValType::String)),
    ];
    host.ty().function().params(parameters).result(None);
    host.export("log", ComponentTypeRef::Func(2));
    let host = whole.type_instance(None, &host);
    let host = (HOST, ComponentExportKind::Instance, whole.import(HOST, ComponentTypeRef::Instance(host)));

    let solver = whole.component_raw(None, solver);
    let policy = whole.component_raw(None, policy);
    let solver = whole.instantiate(None, solver, [host]);
    let asked = whole.alias_export(solver, API, ComponentExportKind::Instance);
    let policy = whole.instantiate(None, policy, [host, (API, ComponentExportKind::Instance, asked)]);
    let api = whole.alias_export(policy, API, ComponentExportKind::Instance);
    whole.export(API, ComponentExportKind::Instance, api, None);
    let whole = whole.finish();
    let joined = Validator::new().validate_all(&whole);
    joined.map_err(|error| failed("the two do not fit together", error.to_string()))?;
    Ok(whole)
}

/// Returns whether a component imports another planner.
fn imports_api(component: &[u8]) -> wasmparser::Result<bool> {
    let mut depth = 0_usize;
    for payload in Parser::new(0).parse_all(component) {
        match payload? {
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(imports) if depth == 0 => {
                for import in imports {
                    if import?.name.name == API {
                        return Ok(true);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    /// Creates a component with these imports, all unused.
    fn importing(names: &[&str]) -> Vec<u8> {
        let imports: String = names.iter().map(|name| format!("(import \"{name}\" (instance))")).collect();
        wat::parse_str(format!("(component {imports})")).unwrap()
    }

    #[test]
    fn what_cannot_be_joined_is_refused_with_a_reason() {
        let module = wat::parse_str("(module)").unwrap();
        for (policy, solver, says) in [
            (b"garbage".to_vec(), importing(&[]), "the policy: "),
            (importing(&[API]), b"garbage".to_vec(), "the solver: "),
            (importing(&[HOST]), importing(&[HOST]), "not import `shardwright:planner/api@0.2.0-draft`"),
            (module, importing(&[HOST]), "it does not import"),
            (importing(&[API]), importing(&[HOST]), "the two do not fit together"),
        ] {
            let error = compose(&policy, &solver).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.message().starts_with("the planners cannot be composed: "), "{error}");
            assert!(error.to_string().contains(says) && error.help().is_some(), "{error}");
        }
    }
}
