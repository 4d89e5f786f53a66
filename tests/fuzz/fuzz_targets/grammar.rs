//! libFuzzer program for the target with the name of this file.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    shardwright_fuzz::grammar(bytes);
});
