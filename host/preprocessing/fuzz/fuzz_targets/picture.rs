//! libFuzzer program for the target of the same name.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shardwright_preprocessing_fuzz::picture(bytes));
