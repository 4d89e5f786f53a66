//! The generated host side of `wit/v0.2/planner.wit`. Only [`convert`](crate::convert) and
//! [`sandbox`](crate::sandbox) use these types.

wasmtime::component::bindgen!({
    path: "../../wit/v0.2",
    world: "planner",
    imports: { default: trappable },
});

pub(crate) use exports::shardwright::planner::api as wit;
pub(crate) use shardwright::planner::host as guest_log;
