//! Embeds the built-in planner, where there is a compiler to run it with, and tells the sandbox its host.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "compiler")]
    embed();
}

#[cfg(feature = "compiler")]
fn embed() {
    use std::path::PathBuf;

    let variable = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    println!("cargo::rustc-env=SHARDWRIGHT_HOST_TARGET={}", variable("TARGET"));

    let workspace = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("../..");
    for source in ["planner/src", "planner/Cargo.toml", "plugins/generic", "wit/v0.1"] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    // OUT_DIR is TARGET/PROFILE/build/PACKAGE/out. Planners share one directory beside the profiles, so that a second
    // profile or a test builds nothing again.
    let planners = out.ancestors().nth(4).unwrap_or(&out).join("planners");
    let built = shardwright_planner_build::build(&workspace.join("plugins/generic/Cargo.toml"), &planners);
    let component = built.unwrap_or_else(|error| {
        for line in error.to_string().lines() {
            println!("cargo::error={line}");
        }
        if let Some(help) = error.help() {
            println!("cargo::error=help: {help}");
        }
        std::process::exit(1);
    });
    if let Err(error) = std::fs::write(out.join("generic.wasm"), component) {
        panic!("cannot write the built-in planner: {error}");
    }
}
