//! Compares results with the numbers that the library's processors made for the fixture.

use safetensors::SafeTensors;
use shardwright_preprocessing::*;

use crate::support::fixture;

/// The library transforms features in 32 bits, this crate in 64.
const MEL_TOLERANCE: f32 = 1.4e-5;

struct Goldens(Vec<u8>);

impl Goldens {
    fn read() -> Self {
        Goldens(std::fs::read(fixture().join("goldens.safetensors")).expect("goldens"))
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        let tensors = SafeTensors::deserialize(&self.0).expect("safetensors");
        tensors.tensor(name).expect("a golden").data().to_vec()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let bytes = self.bytes(name);
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn integers(&self, name: &str) -> Vec<i64> {
        let bytes = self.bytes(name);
        bytes.as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    }
}

#[test]
fn patches_of_the_picture_are_the_librarys_to_the_bit() {
    let goldens = Goldens::read();
    let settings = ProcessorSettings::read(fixture()).expect("settings").expect("a file");
    let settings = settings.picture.expect("of pictures");
    let picture = Picture::from_rgb8(50, 38, 150, &goldens.bytes("p1.image_rgb")).expect("a picture");
    let grid = settings.grid(50, 38, settings.soft_tokens).expect("a grid");
    assert_eq!(grid.soft_tokens(), 63);

    let values = goldens.floats("p1.pixel_values");
    let positions: Vec<[i32; 2]> = goldens
        .integers("p1.image_position_ids")
        .as_chunks()
        .0
        .iter()
        .map(|[column, row]| [*column as i32, *row as i32])
        .collect();
    let room = positions.len();
    let (mut patches, mut columns, mut rows) = (vec![9.0; values.len()], vec![9; room], vec![9; room]);
    picture.write_patches(&grid, &mut patches, &mut columns, &mut rows).expect("written");
    let width = settings.patch_values();
    let mut largest = 0f32;
    for (index, position) in positions.iter().enumerate().filter(|(_, position)| position[0] >= 0) {
        let at = (0..room).find(|at| [columns[*at], rows[*at]] == *position).expect("the position");
        for (ours, theirs) in patches[at * width..][..width].iter().zip(&values[index * width..]) {
            largest = largest.max((ours - theirs).abs());
        }
    }
    println!("largest difference of a pixel value: {largest:e}");
    assert_eq!(largest, 0.0);

    // The patches from the library's own array.
    let (mut theirs, mut their_columns, mut their_rows) =
        (vec![9.0; values.len()], vec![9; room], vec![9; room]);
    let reordered = settings
        .reorder_patches(&values, &positions, &mut theirs, &mut their_columns, &mut their_rows)
        .expect("reordered");
    assert_eq!((reordered.columns(), reordered.rows()), (grid.columns(), grid.rows()));
    assert!(theirs == patches && their_columns == columns && their_rows == rows);
}

#[test]
fn features_of_the_sound_are_the_librarys() {
    let goldens = Goldens::read();
    let settings = ProcessorSettings::read(fixture()).expect("settings").expect("a file");
    let settings = settings.sound.expect("of sounds");
    let samples = goldens.floats("p2.waveform");
    let sound = Sound::from_samples(16_000, &samples, &settings).expect("a sound");
    assert!(sound.samples() == samples, "one channel at that rate stays as it is");
    let (expected, mask) = (goldens.floats("p2.input_features"), goldens.bytes("p2.input_features_mask"));
    assert_eq!(sound.frames(), mask.len());

    let mut frames = vec![9.0; (mask.len() + 3) * 128];
    let valid = sound.write_frames(&mut frames).expect("written");
    let valid_there = mask.iter().take_while(|valid| **valid == 1).count();
    assert!(valid == valid_there && mask[valid..].iter().all(|valid| *valid == 0));
    let mut largest = 0f32;
    for (ours, theirs) in frames.iter().zip(&expected) {
        largest = largest.max((ours - theirs).abs());
    }
    println!("largest difference of a feature: {largest:e}");
    assert!(largest <= MEL_TOLERANCE, "{largest:e}");
    assert!(frames[valid * 128..].iter().all(|value| *value == 0.0));
    // The number of soft tokens that the library's tower made.
    let made = goldens.bytes("p2.audio.mask").iter().filter(|made| **made == 1).count();
    assert_eq!(sound.soft_tokens(), made);
}
