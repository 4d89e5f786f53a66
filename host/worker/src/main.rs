//! The program that the host starts to run a shim in a process of its own; see
//! `shardwright_worker::Launcher`.

fn main() {
    shardwright_worker::worker_main(&[])
}
