//! See `toolcell_fuzz::message`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| toolcell_fuzz::message(bytes));
