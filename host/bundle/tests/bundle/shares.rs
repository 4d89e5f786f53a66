//! Some variants of a bundle form a separate bundle without unneeded files.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use shardwright_bundle::{Bundle, BundleWriter, FileReference, Share};
use shardwright_vocabulary::{ErrorKind, PlainName};

use crate::support::{RECIPE, Recipe, fill, place};

/// Writes a bundle for two chips and a generic variant. Tables and texts are shared, artefacts are
/// not.
pub fn for_several(directory: &Path) -> Bundle {
    let mut writer = BundleWriter::create(directory).unwrap();
    let mut manifest = fill(&mut writer, RECIPE).unwrap();
    for (soc, seed) in [("mt6993", 4), ("generic", 5)] {
        let mut variant = fill(&mut writer, Recipe { seed, ..RECIPE }).unwrap().variants.remove(0);
        variant.soc = PlainName::new(soc).unwrap();
        variant.aliases.clear();
        manifest.variants.push(variant);
    }
    writer.finish(&manifest).unwrap()
}

fn packed(share: &Share, to: &Path) -> Bundle {
    let report = share.pack(&share.volume(), to, |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((report.bundle, report.bytes), (share.sha256(), fs::metadata(to).unwrap().len()));
    assert_eq!(report.bytes, share.volume().bytes);
    Bundle::open(to).unwrap()
}

#[test]
fn a_share_is_a_bundle_with_what_its_variants_need() {
    let (parent, directory) = place();
    let whole = for_several(&directory);
    for socs in [&["mt6989"][..], &["mt6993"], &["generic"], &["generic", "Dimensity 9300"]] {
        let share = whole.share(socs).unwrap();
        let to = parent.path().join("share.swb");
        let opened = packed(&share, &to);
        opened.verify_all(|_| ()).unwrap();
        assert_eq!((opened.sha256(), opened.manifest()), (share.sha256(), share.manifest()));
        assert_ne!(opened.sha256(), whole.sha256());
        assert_eq!(opened.manifest().variants.len(), socs.len());
        assert_eq!(opened.files(), share.files());
        let named: BTreeSet<FileReference> =
            share.manifest().references().into_iter().map(|(_, file)| file).collect();
        assert!(named.into_iter().eq(opened.files()) && opened.files().len() < whole.files().len());
        assert_eq!(opened.manifest().texts, whole.manifest().texts);
        // Sharing again from the packed form gives the same bytes.
        let again =
            packed(&Bundle::open(&to).unwrap().share(socs).unwrap(), &parent.path().join("again.swb"));
        assert_eq!(again.sha256(), opened.sha256());
        assert!(fs::read(&to).unwrap() == fs::read(parent.path().join("again.swb")).unwrap());
    }
    let all = whole.share(&["generic", "mt6989", "mt6993"]).unwrap();
    assert_eq!((all.sha256(), all.files().len()), (whole.sha256(), whole.files().len()));
}

#[test]
fn a_share_of_a_chip_that_is_not_there_is_refused() {
    let (_parent, directory) = place();
    let whole = for_several(&directory);
    for socs in [&["sm8750"][..], &["generic", "sm8750"], &[]] {
        let error = whole.share(socs).unwrap_err();
        assert!(error.kind() == ErrorKind::Argument && error.help().is_some());
        assert!(error.message().ends_with("the variants are for mt6989, mt6993, generic"), "{error}");
    }
}
