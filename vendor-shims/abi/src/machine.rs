//! The machines that the contract supports: 64-bit little-endian. The header asserts the same.
//! Casts between sizes and pointers rely on it.

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("the shim contract is for 64-bit little-endian machines");
