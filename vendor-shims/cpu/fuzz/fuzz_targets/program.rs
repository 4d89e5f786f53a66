//! Runs the fuzz target of the same name under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shardwright_shim_cpu_fuzz::program(bytes));
