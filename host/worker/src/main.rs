//! The program that the host starts to run a shim in a separate process, see
//! `shardwright_worker::Launcher`.

fn main() {
    shardwright_worker::worker_main(&[])
}
