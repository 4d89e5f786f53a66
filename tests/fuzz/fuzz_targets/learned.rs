//! libFuzzer's program for the target of its name.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    shardwright_fuzz::learned(bytes);
});
