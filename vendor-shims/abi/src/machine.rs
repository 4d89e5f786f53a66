//! The machines that the contract is for; the header asserts the same. Sizes and pointers are taken
//! for each other on this ground.

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("the shim contract is for 64-bit little-endian machines");
