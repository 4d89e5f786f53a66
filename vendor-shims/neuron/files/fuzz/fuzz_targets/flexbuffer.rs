//! The libFuzzer program for the target with this name.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shardwright_neuron_files_fuzz::flexbuffer(bytes));
