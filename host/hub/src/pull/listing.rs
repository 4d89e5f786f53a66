//! The list of a model's files from the hub's API.

use std::io::Read;

use serde::Deserialize;
use serde_json::Value;
use shardwright_files::hex;
use shardwright_vocabulary::{Result, UniqueKeys};

use super::PullWatch;
use super::blob::Hash;
use super::http::{Answer, Ask, Client, Failed, text, unlike_a_hub};
use crate::HubId;
use crate::id::is_commit;

/// Maximum size of a list in bytes. A hundred thousand files have some 20 MB.
const BYTES: u64 = 32 << 20;

/// Maximum length of a displayed licence or state in characters.
const SHOWN: usize = 100;

/// A file of the list.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub name: String,
    pub bytes: Option<u64>,
    hash: Option<Hash>,
}

impl Entry {
    /// Returns the size in bytes, or 0 if the list does not include it.
    pub fn size(&self) -> u64 {
        self.bytes.unwrap_or(0)
    }

    /// Returns the hash of the file.
    ///
    /// # Errors
    /// If the hub provides no hash.
    pub fn hash(&self) -> Result<Hash> {
        self.hash.ok_or_else(|| unlike_a_hub(UNIDENTIFIED).at(&self.name))
    }
}

const UNIDENTIFIED: &str = "the hub gives neither hash nor size of this file";

/// The hub's information about a model.
#[derive(Debug)]
pub(super) struct Listing {
    pub commit: String,
    pub entries: Vec<Entry>,
    pub licence: Option<String>,
    pub gated: Option<String>,
}

/// The used part of the API's answer.
#[derive(Deserialize)]
struct Model {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
    #[serde(default)]
    gated: Value,
    #[serde(default, rename = "cardData")]
    card: Value,
    #[serde(default)]
    tags: Vec<Value>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Large>,
}

/// A file that git stores elsewhere (Git LFS).
#[derive(Deserialize)]
struct Large {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Requests the list of a model's files.
///
/// # Errors
/// For a list that is too long or not of this form, and errors of requests.
pub(super) fn fetch(client: &Client, id: &HubId, watch: &dyn PullWatch) -> Result<Listing, Failed> {
    let url = client.list(id);
    let refused = |reason: String| Failed::from(unlike_a_hub(reason).at(&url));
    let bytes = client.persist(
        watch,
        || 0,
        || {
            let answer = client.request(&url, Ask::Body { from: 0 })?;
            let mut bytes = Vec::new();
            let mut body = answer.response.into_body().into_reader().take(BYTES + 1);
            body.read_to_end(&mut bytes).map_err(|error| Failed::cut(&url, error))?;
            Ok(bytes)
        },
    )?;
    if bytes.len() as u64 > BYTES {
        return Err(refused(format!("the list has more than {BYTES} bytes")));
    }
    let unlike = |error: serde_json::Error| refused(error.to_string());
    let UniqueKeys = serde_json::from_slice(&bytes).map_err(unlike)?;
    let model: Model = serde_json::from_slice(&bytes).map_err(unlike)?;
    if !is_commit(&model.sha) {
        return Err(refused(format!("`sha` is not a commit: {:.60?}", model.sha)));
    }
    if is_commit(id.revision()) && model.sha != id.revision() {
        return Err(refused(format!("expected the commit {}, got {}", id.revision(), model.sha)));
    }
    Ok(Listing {
        licence: licence(&model),
        gated: match &model.gated {
            Value::String(how) => Some(shown(how)),
            Value::Bool(true) => Some("yes".to_owned()),
            _ => None,
        },
        commit: model.sha,
        entries: model.siblings.into_iter().map(entry).collect(),
    })
}

fn entry(sibling: Sibling) -> Entry {
    let Sibling { rfilename: name, size, blob, lfs } = sibling;
    let (bytes, hash) = match lfs {
        Some(Large { sha256, size: large }) => (large.or(size), sha256.and_then(|text| sha256_of(&text))),
        None => (size, blob.and_then(|text| git_of(&text))),
    };
    Entry { name, bytes, hash }
}

fn sha256_of(text: &str) -> Option<Hash> {
    hex::decode(text).map(Hash::Sha256)
}

fn git_of(text: &str) -> Option<Hash> {
    hex::decode(text).map(Hash::Git)
}

/// Returns the licence of the model card, or of the tags derived from it.
fn licence(model: &Model) -> Option<String> {
    let named = match &model.card["license"] {
        Value::String(licence) => Some(licence.as_str()),
        _ => model.tags.iter().filter_map(Value::as_str).find_map(|tag| tag.strip_prefix("license:")),
    };
    // A licence with its own name is listed as `other`.
    let own = model.card["license_name"].as_str().filter(|_| named.is_none_or(|named| named == "other"));
    own.or(named).map(shown)
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

/// Returns a file with hash and size. If a mirror's list lacks them, they come from the headers of
/// the file.
///
/// # Errors
/// If they are missing there too, and errors of requests.
pub(super) fn identified(
    client: &Client,
    id: &HubId,
    commit: &str,
    entry: &Entry,
    watch: &dyn PullWatch,
) -> Result<Entry, Failed> {
    if entry.hash.is_some() && entry.bytes.is_some() {
        return Ok(entry.clone());
    }
    let url = client.file(id, commit, &entry.name);
    let Answer { hub, .. } = client.persist(watch, || 0, || client.request(&url, Ask::Head))?;
    let tag = text(&hub, "x-linked-etag").or_else(|| text(&hub, "etag")).unwrap_or_default();
    let tag = tag.trim_start_matches("W/").trim_matches('"');
    let size = text(&hub, "x-linked-size").or_else(|| text(&hub, "content-length"));
    let hash = sha256_of(tag).or_else(|| git_of(tag));
    match (hash, size.and_then(|size| size.parse().ok())) {
        (Some(hash), Some(bytes)) => {
            Ok(Entry { name: entry.name.clone(), bytes: Some(bytes), hash: Some(hash) })
        }
        _ => Err(unlike_a_hub(UNIDENTIFIED).at(url).into()),
    }
}
