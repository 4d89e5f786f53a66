//! Tests the library's description of its machine. No phone is available here, so this only checks
//! that the call succeeds.

use shardwright_shim_qnn::session::{Backend, Library, LibraryChoice};

use crate::library;

#[test]
fn the_library_describes_its_own_platform() {
    let Some(path) = library() else { return };
    let library =
        Library::open(&LibraryChoice { option: Some(path), ..LibraryChoice::default() }).expect("opened");
    let backend = Backend::new(library).expect("started");
    let chip = backend.own_soc().expect("answered");
    println!("the library finds itself on chip {chip:?}");
    assert_eq!(backend.own_soc().expect("answered"), chip);
}
