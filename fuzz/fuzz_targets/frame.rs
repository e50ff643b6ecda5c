//! See `toolcell_fuzz::frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| toolcell_fuzz::frame(bytes));
