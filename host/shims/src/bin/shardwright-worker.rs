//! The program that the host starts to have a shim in a process of its own; see
//! `shardwright_shims::Launcher`.

fn main() {
    shardwright_shims::worker_main(&[])
}
