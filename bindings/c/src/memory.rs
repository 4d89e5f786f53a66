//! Reads and writes memory of the caller, by the rules in the introduction of the header: a pointer
//! is NULL or valid, a text ends with a 0 byte, a struct has at least the bytes of its `size`.
//!
//! Callers of these functions are the functions of the interface, which are unsafe for this reason.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::path::PathBuf;

use shardwright_bindings_core::{Error, ErrorKind, NamedValue, Result};

/// Length of a text that ends with a 0 byte instead.
pub(crate) const TERMINATED: usize = usize::MAX;

/// Most bytes of a struct. A larger size is not a size.
const STRUCT_BYTES_MAX: usize = 4096;

/// Most items of a list of texts.
const LIST_MAX: usize = 4096;

/// A struct of the interface that begins with its size, for which any bits are valid.
///
/// # Safety
///
/// The type is `repr(C)`, its first field is a `usize`, and any bits of all fields are valid.
pub(crate) unsafe trait Plain: Copy {
    /// Size of the struct in the first version that had it.
    const FIRST_SIZE: usize;
}

fn null(what: &str) -> Error {
    Error::argument(format!("{what} is NULL"), "pass a valid pointer")
}

/// Returns the text as bytes with a 0 byte at the end.
pub(crate) fn terminated(text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    bytes.push(0);
    bytes
}

/// Copies the bytes of a text that ends with a 0 byte.
fn text_bytes(pointer: *const c_char, what: &str) -> Result<Vec<u8>> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller passes a text that ends with a 0 byte.
    Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes().to_vec())
}

fn utf8(bytes: Vec<u8>, what: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::argument(format!("{what} is not valid UTF-8 at byte {at}"), "encode the text as UTF-8")
    })
}

/// Reads a text.
pub(crate) fn text(pointer: *const c_char, what: &str) -> Result<String> {
    utf8(text_bytes(pointer, what)?, what)
}

/// Reads a text that may be missing.
pub(crate) fn optional_text(pointer: *const c_char, what: &str) -> Result<Option<String>> {
    if pointer.is_null() { Ok(None) } else { text(pointer, what).map(Some) }
}

/// Reads a text with a length, or one that ends with a 0 byte.
pub(crate) fn counted_text(pointer: *const c_char, bytes: usize, what: &str) -> Result<String> {
    match bytes {
        TERMINATED => text(pointer, what),
        _ => utf8(values(pointer.cast(), bytes, what)?, what),
    }
}

fn path_of(bytes: Vec<u8>, what: &str) -> Result<PathBuf> {
    if bytes.is_empty() {
        return Err(Error::argument(format!("{what} is empty"), "pass the path of a file or a directory"));
    }
    #[cfg(unix)]
    let path = <std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes).into();
    #[cfg(not(unix))]
    let path = utf8(bytes, what)?.into();
    Ok(path)
}

/// Reads a path. Any bytes are valid on Unix.
pub(crate) fn path(pointer: *const c_char, what: &str) -> Result<PathBuf> {
    path_of(text_bytes(pointer, what)?, what)
}

/// Reads a path with a length, or one that ends with a 0 byte.
pub(crate) fn counted_path(pointer: *const c_char, bytes: usize, what: &str) -> Result<PathBuf> {
    match bytes {
        TERMINATED => path(pointer, what),
        _ => path_of(values(pointer.cast(), bytes, what)?, what),
    }
}

/// Reads a list of pointers that ends with NULL. A NULL list is empty.
fn list(pointer: *const *const c_char, what: &str) -> Result<Vec<*const c_char>> {
    let mut found = Vec::new();
    if pointer.is_null() {
        return Ok(found);
    }
    while found.len() < LIST_MAX {
        // SAFETY: the caller passes a list that ends with NULL, and no item before was NULL.
        let item = unsafe { pointer.add(found.len()).read_unaligned() };
        if item.is_null() {
            return Ok(found);
        }
        found.push(item);
    }
    Err(Error::argument(format!("{what} has more than {LIST_MAX} items"), "end the list with NULL"))
}

/// Reads a list of texts.
pub(crate) fn texts(pointer: *const *const c_char, what: &str) -> Result<Vec<String>> {
    list(pointer, what)?.into_iter().map(|item| text(item, what)).collect()
}

/// Reads a list of paths.
pub(crate) fn paths(pointer: *const *const c_char, what: &str) -> Result<Vec<PathBuf>> {
    list(pointer, what)?.into_iter().map(|item| path(item, what)).collect()
}

/// Reads a list of texts of the form `name=value`.
pub(crate) fn named_values(pointer: *const *const c_char, what: &str) -> Result<Vec<NamedValue>> {
    let named = |item: String| match item.split_once('=') {
        Some((name, value)) => Ok(NamedValue { name: name.to_owned(), value: value.to_owned() }),
        None => Err(Error::argument(format!("{what}: `{item}` has no `=`"), "write `name=value`")),
    };
    texts(pointer, what)?.into_iter().map(named).collect()
}

/// Types of which any bits are valid, without padding.
///
/// # Safety
///
/// Any bits are valid for the type.
pub(crate) unsafe trait Number: Copy + Default {}

// SAFETY: any bits are a number.
unsafe impl Number for u8 {}
// SAFETY: any bits are a number.
unsafe impl Number for u32 {}
// SAFETY: any bits are a number.
unsafe impl Number for i32 {}
// SAFETY: any bits are a number, or not a number.
unsafe impl Number for f32 {}

/// Copies `count` numbers. A NULL pointer is valid for 0 numbers. The pointer need not be aligned.
pub(crate) fn values<T: Number>(pointer: *const T, count: usize, what: &str) -> Result<Vec<T>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if pointer.is_null() {
        return Err(null(what));
    }
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    // An end beyond the address space is a wrong length. It is found before memory is allocated for
    // it.
    let Some(bytes) = bytes.filter(|bytes| pointer.addr().checked_add(*bytes).is_some()) else {
        return Err(Error::argument(
            format!("{what} has {count} items, which no memory has"),
            "pass the right length",
        ));
    };
    let mut copy: Vec<T> = Vec::new();
    if copy.try_reserve_exact(count).is_err() {
        let what = format!("no memory for the {bytes} bytes of {what}");
        return Err(Error::new(ErrorKind::Memory, what, "pass the right length, or less data"));
    }
    copy.resize(count, T::default());
    // SAFETY: the caller passes `count` readable numbers, the copy has as many, and any bits are
    // valid.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), bytes) };
    Ok(copy)
}

fn size_at<T: Plain>(pointer: *const T, what: &str) -> Result<usize> {
    if pointer.is_null() {
        return Err(null(what));
    }
    // SAFETY: the pointer is to a struct, which begins with its size.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    if !(T::FIRST_SIZE..=STRUCT_BYTES_MAX).contains(&size) {
        let first = T::FIRST_SIZE;
        let what = format!("{what} has the size {size}, expected {first} to {STRUCT_BYTES_MAX}");
        return Err(Error::argument(what, "set `size` to the size of the struct"));
    }
    Ok(size)
}

/// Reads a struct. Fields that the caller's version does not have are 0.
pub(crate) fn sized<T: Plain>(pointer: *const T, what: &str) -> Result<T> {
    let size = size_at(pointer, what)?;
    let known = size.min(size_of::<T>());
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: the caller's struct has `size` bytes, and the copy has at least `known`.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), known) };
    for at in known..size {
        // SAFETY: the byte is within the caller's struct.
        if unsafe { pointer.cast::<u8>().add(at).read() } != 0 {
            let what = format!("{what} has a field of a later version at byte {at}");
            return Err(Error::new(ErrorKind::Unsupported, what, "set it to 0, or use a newer library"));
        }
    }
    // SAFETY: any bits are valid for the type, and all of them are initialised.
    Ok(unsafe { copy.assume_init() })
}

/// Reads a struct that may be missing.
pub(crate) fn optional<T: Plain>(pointer: *const T, what: &str) -> Result<Option<T>> {
    if pointer.is_null() { Ok(None) } else { sized(pointer, what).map(Some) }
}

/// Reads an array of structs, which are the size of the first one apart.
pub(crate) fn array<T: Plain>(pointer: *const T, count: usize, what: &str) -> Result<Vec<T>> {
    /// Most elements of an array.
    const COUNT_MAX: usize = 1 << 20;
    if count == 0 {
        return Ok(Vec::new());
    }
    if count > COUNT_MAX {
        let what = format!("{what} has {count} elements, more than {COUNT_MAX}");
        return Err(Error::argument(what, "pass the number of elements"));
    }
    let stride = size_at(pointer, what)?;
    let element = |index: usize| {
        let place = format!("{what}[{index}]");
        // SAFETY: the caller passes `count` structs, which are this far apart.
        let element = unsafe { pointer.cast::<u8>().add(index * stride) }.cast::<T>();
        let size = size_at(element, &place)?;
        if size != stride {
            let what = format!("{place} has the size {size}, but the first element has {stride}");
            return Err(Error::argument(what, "set `size` of all elements to the size of the struct"));
        }
        sized(element, &place)
    };
    (0..count).map(element).collect()
}

/// Writes a struct as far as the caller's version has it. The caller's `size` stays.
pub(crate) fn write_sized<T: Plain>(pointer: *mut T, value: T, what: &str) -> Result<()> {
    let size = size_at(pointer, what)?;
    let known = size.min(size_of::<T>());
    let value = &raw const value;
    let first = size_of::<usize>();
    // SAFETY: both structs have `known` bytes, which begin with the size, and `value` is another
    // struct.
    unsafe {
        let (from, to) = (value.cast::<u8>().add(first), pointer.cast::<u8>().add(first));
        std::ptr::copy_nonoverlapping(from, to, known - first);
    }
    Ok(())
}

/// A place for a result of a call.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Checks the place and writes `none`, the result of a call that fails.
    pub(crate) fn new(pointer: *mut T, none: T, what: &str) -> Result<Out<T>> {
        let place = Out::optional(pointer, none);
        if pointer.is_null() { Err(null(what)) } else { Ok(place) }
    }

    /// Writes `none` to the place, if it is not NULL.
    pub(crate) fn optional(pointer: *mut T, none: T) -> Out<T> {
        let place = Out(pointer);
        place.set(none);
        place
    }

    /// Returns whether the place is not NULL.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.0.is_null()
    }

    /// Writes the result, unless the place is NULL.
    pub(crate) fn set(&self, value: T) {
        if self.is_wanted() {
            // SAFETY: the caller passes NULL or a writable place.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Pair {
        size: usize,
        first: u64,
        second: u64,
    }

    // SAFETY: all fields are numbers.
    unsafe impl Plain for Pair {
        const FIRST_SIZE: usize = 16;
    }

    #[test]
    fn structs_of_older_and_newer_callers_are_read() {
        let newer = [24 + 8_usize, 7, 8, 0];
        let read = |words: &[usize]| sized(words.as_ptr().cast::<Pair>(), "the pair");
        if size_of::<usize>() == 8 {
            assert_eq!(read(&newer).unwrap(), Pair { size: 32, first: 7, second: 8 });
            let error = read(&[32, 7, 8, 1]).unwrap_err();
            assert_eq!((error.kind, error.message.contains("at byte 24")), (ErrorKind::Unsupported, true));
            assert_eq!(read(&[16, 7]).unwrap(), Pair { size: 16, first: 7, second: 0 });
        }
        for size in [0, 15, 4097, usize::MAX] {
            let error = read(&[size, 0, 0, 0]).unwrap_err();
            assert_eq!((error.kind, error.message.contains("has the size")), (ErrorKind::Argument, true));
        }
        assert!(optional(std::ptr::null::<Pair>(), "the pair").unwrap().is_none());
    }

    #[test]
    fn only_the_fields_of_the_caller_are_written() {
        let value = Pair { size: 0, first: 1, second: 2 };
        let mut caller = Pair { size: 16, first: 9, second: 9 };
        write_sized(&raw mut caller, value, "the pair").unwrap();
        assert_eq!(caller, Pair { size: 16, first: 1, second: 9 });
        caller.size = 24;
        write_sized(&raw mut caller, value, "the pair").unwrap();
        assert_eq!(caller, Pair { size: 24, first: 1, second: 2 });
        assert!(write_sized(std::ptr::null_mut(), value, "the pair").is_err());
    }

    #[test]
    fn elements_of_an_array_have_one_size() {
        let mut pairs = [Pair { size: 24, first: 1, second: 2 }, Pair { size: 24, first: 3, second: 4 }];
        assert_eq!(array(pairs.as_ptr(), 2, "pairs").unwrap(), pairs);
        assert_eq!(array(std::ptr::null::<Pair>(), 0, "pairs").unwrap(), []);
        assert!(array(std::ptr::null::<Pair>(), 1, "pairs").is_err());
        assert!(array(pairs.as_ptr(), usize::MAX, "pairs").is_err());
        pairs[1].size = 16;
        let error = array(pairs.as_ptr(), 2, "pairs").unwrap_err();
        assert!(error.message.contains("pairs[1]"), "{error}");
    }

    #[test]
    fn lengths_that_no_memory_has_are_refused() {
        let numbers = [1.0_f32, 2.0];
        let unaligned = numbers.as_ptr().cast::<u8>().wrapping_add(4).cast::<f32>();
        assert_eq!(values(unaligned, 1, "numbers").unwrap(), [2.0]);
        for count in [usize::MAX, usize::MAX / 2, usize::MAX / 4 + 1] {
            assert_eq!(values(numbers.as_ptr(), count, "numbers").unwrap_err().kind, ErrorKind::Argument);
        }
        assert!(values(std::ptr::null::<f32>(), 1, "numbers").is_err());
        assert!(values(std::ptr::null::<f32>(), 0, "numbers").unwrap().is_empty());
    }

    #[test]
    fn texts_are_utf8_and_paths_are_bytes() {
        assert_eq!(text(c"gr\u{fc}n".as_ptr(), "the text").unwrap(), "gr\u{fc}n");
        let error = text(c"ab\xff".as_ptr(), "the text").unwrap_err();
        assert_eq!(error.message, "the text is not valid UTF-8 at byte 2");
        assert!(text(std::ptr::null(), "the text").is_err());
        assert!(optional_text(std::ptr::null(), "the text").unwrap().is_none());
        assert_eq!(counted_text(c"abc".as_ptr(), 2, "the text").unwrap(), "ab");
        assert_eq!(counted_text(c"abc".as_ptr(), TERMINATED, "the text").unwrap(), "abc");
        assert_eq!(path(c"a\xff".as_ptr(), "the path").is_ok(), cfg!(unix));
        assert!(path(c"".as_ptr(), "the path").is_err());
        let items = [c"a=b=c".as_ptr(), c"d".as_ptr(), std::ptr::null()];
        assert_eq!(texts(items.as_ptr(), "the list").unwrap(), ["a=b=c", "d"]);
        assert!(named_values(items.as_ptr(), "the list").unwrap_err().message.contains("`d` has no `=`"));
        let one = [c"a=b=c".as_ptr(), std::ptr::null()];
        let expected = NamedValue { name: "a".to_owned(), value: "b=c".to_owned() };
        assert_eq!(named_values(one.as_ptr(), "the list").unwrap(), [expected]);
    }
}
