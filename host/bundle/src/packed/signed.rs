//! The signature of a packed bundle, which is located without parsing.

use shardwright_files::Section;
use shardwright_trust::{ENVELOPE_BYTES, Kind, Trust, unsigned};
use shardwright_vocabulary::Result;

use super::container::LOCAL_BYTES;
use super::layout::{self, Part};
use crate::error::{beyond, io_at};
use crate::layout::{MANIFEST, SIGNATURE};
use crate::manifest::MANIFEST_BYTES;

/// Returns whether a signature is at its fixed place, by the name of the first part.
pub(crate) fn is_signed(section: &Section) -> bool {
    let mut name = [0; SIGNATURE.len()];
    section.read_exact_at(&mut name, LOCAL_BYTES).is_ok() && name == *SIGNATURE.as_bytes()
}

/// Checks the bundle's signature by the rules of `trust`. The signature is at a fixed place. It
/// includes the length of the manifest, whose place is therefore known too.
pub(crate) fn expect(section: &Section, trust: &Trust) -> Result<()> {
    if !trust.is_on(Kind::Bundle) {
        return Ok(());
    }
    let path = section.path();
    let part = |name: &str, length| Part { name: name.to_owned(), length, crc: 0 };
    let signature = part(SIGNATURE, ENVELOPE_BYTES as u64);
    let too_long = |bytes| beyond(path, "bytes of the manifest", bytes, MANIFEST_BYTES);
    let overflow = || too_long(u64::MAX);
    let mut envelope = [0; ENVELOPE_BYTES];
    let envelope = match is_signed(section) {
        true => {
            let (places, _) = layout::places(std::slice::from_ref(&signature)).ok_or_else(overflow)?;
            let at = places.first().map_or(0, |place| place.data);
            section.read_exact_at(&mut envelope, at).map_err(io_at(path))?;
            Some(envelope.as_slice())
        }
        false => None,
    };
    let Some(statement) = trust.expect_envelope(path, Kind::Bundle, envelope)? else { return Ok(()) };
    if statement.bytes > MANIFEST_BYTES {
        return Err(too_long(statement.bytes));
    }
    let parts = [signature, part(MANIFEST, statement.bytes)];
    let (places, _) = layout::places(&parts).ok_or_else(overflow)?;
    let mut manifest = vec![0; statement.bytes as usize];
    let read = places.last().map(|place| section.read_exact_at(&mut manifest, place.data));
    if !matches!(read, Some(Ok(()))) {
        trust.expect_that(Kind::Bundle, false, || unsigned(path))?;
        return Ok(());
    }
    trust.expect(path, Kind::Bundle, envelope, &manifest)?;
    Ok(())
}
