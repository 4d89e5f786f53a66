//! Generated pictures and sounds to calibrate towers on and to verify them.
//!
//! Ranges of a tower's tensors depend on contrast, edges, textures and loudness, not on the subject
//! of a picture. So the pictures are gradients, stripes, checks, noise at several scales, discs,
//! strokes like handwriting, and plain surfaces. The sounds are chords, a chirp, noise, clicks, a
//! voice-like pulse train through resonances, and near silence.

use std::f32::consts::TAU;

use shardwright_preprocessing::{Picture, PictureSettings, ProcessorSettings, Sound};
use shardwright_quantisation::FeatureSample;
use shardwright_vocabulary::{Error, ErrorKind, Pass, Result};

/// One of two sets, because a tower must not be verified on samples that it was calibrated on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleSet {
    Calibration,
    Verification,
}

/// Soft tokens of a picture, unless its processor makes fewer. Ranges do not grow with a picture,
/// but the time to compute them does.
const SOFT_TOKENS: u32 = PictureSettings::BUDGETS[0];
/// Pixels of a picture's sides, used alternately: wide, tall, square.
const SIZES: [(u32, u32); 3] = [(320, 200), (180, 300), (256, 256)];
/// Lengths of the sounds in seconds, used alternately.
const SECONDS: [f32; 3] = [1.5, 2.0, 1.0];

/// Returns the front end's features for the pictures or sounds of a set, each with its name. A clip
/// has at most `most` soft tokens, a picture the fewest that its processor makes.
///
/// # Errors
///
/// Fails with [`ErrorKind::Unsupported`] if the processor does not support the pass, and with
/// errors of its settings.
pub fn tower_samples(
    pass: Pass,
    processor: &ProcessorSettings,
    most: u32,
    set: SampleSet,
) -> Result<Vec<(&'static str, FeatureSample)>> {
    let seed = match set {
        SampleSet::Calibration => 1,
        SampleSet::Verification => 1_000_003,
    };
    let lacking =
        || Error::new(ErrorKind::Unsupported, format!("the processor has no settings for a {pass}"));
    let mut random = Random(seed);
    match pass {
        Pass::Picture => {
            let settings = processor.picture.as_ref().ok_or_else(lacking)?;
            let budget = settings.soft_tokens.min(SOFT_TOKENS);
            let sample = |(index, (name, paint)): (usize, (&'static str, Paint))| {
                let size = SIZES[(index + usize::from(set == SampleSet::Verification)) % SIZES.len()];
                let (width, height) = size;
                let pixels = paint(&mut random, width as usize, height as usize);
                let picture = Picture::from_rgb8(width, height, width as usize * 3, &pixels)?;
                let grid = settings.grid(width, height, budget)?;
                let (count, patch) = (grid.patches(), settings.patch_values());
                let mut values = vec![0.0; count * patch];
                let (mut columns, mut rows) = (vec![0; count], vec![0; count]);
                picture.write_patches(&grid, &mut values, &mut columns, &mut rows)?;
                let origin = picture.content_hash();
                Ok((name, FeatureSample { values, width: patch, columns, rows, origin }))
            };
            PICTURES.into_iter().enumerate().map(sample).collect()
        }
        _ => {
            let settings = processor.sound.as_ref().ok_or_else(lacking)?;
            // Whole soft tokens of four hops each, at most the requested number.
            let longest = (u64::from(most.max(1)) * 4 * u64::from(settings.hop)).min(settings.longest.into());
            let sample = |(index, (name, play)): (usize, (&'static str, Play))| {
                let seconds = SECONDS[(index + usize::from(set == SampleSet::Verification)) % SECONDS.len()];
                let count = ((seconds * settings.rate as f32) as usize).min(longest as usize);
                let samples = play(&mut random, settings.rate as f32, count);
                let sound = Sound::from_samples(settings.rate, &samples, settings)?;
                let bins = settings.bins as usize;
                let mut values = vec![0.0; sound.valid_frames() * bins];
                sound.write_frames(&mut values)?;
                let origin = sound.content_hash();
                let (columns, rows) = (Vec::new(), Vec::new());
                Ok((name, FeatureSample { values, width: bins, columns, rows, origin }))
            };
            SOUNDS.into_iter().enumerate().map(sample).collect()
        }
    }
}

type Paint = fn(&mut Random, usize, usize) -> Vec<u8>;
type Play = fn(&mut Random, f32, usize) -> Vec<f32>;

const PICTURES: [(&str, Paint); 8] = [
    ("gradient", |random, width, height| {
        let (one, other) = (random.colour(), random.colour());
        painted(width, height, |x, y| {
            let along = (x + y) / (width + height) as f32;
            std::array::from_fn(|channel| one[channel] + (other[channel] - one[channel]) * along)
        })
    }),
    ("stripes", |random, width, height| {
        let (colour, period, slope) = (random.colour(), 4.0 + 12.0 * random.unit(), random.unit());
        painted(width, height, |x, y| {
            let bright = 0.5 + 0.5 * (TAU * (x + slope * y) / period).sin();
            colour.map(|channel| channel * bright)
        })
    }),
    ("checks", |random, width, height| {
        let side = 5.0 + 20.0 * random.unit();
        painted(width, height, |x, y| {
            [if ((x / side) as i32 + (y / side) as i32) % 2 == 0 { 1.0 } else { 0.0 }; 3]
        })
    }),
    ("noise", |random, width, height| painted(width, height, |_, _| std::array::from_fn(|_| random.unit()))),
    ("clouds", |random, width, height| {
        // Waves of many lengths, the long ones strongest, as in pictures of nature.
        let waves: Vec<[f32; 5]> = (1..=24)
            .map(|order| {
                let angle = TAU * random.unit();
                let length = TAU * order as f32 / 200.0;
                [
                    length * angle.cos(),
                    length * angle.sin(),
                    TAU * random.unit(),
                    1.0 / order as f32,
                    random.unit(),
                ]
            })
            .collect();
        painted(width, height, |x, y| {
            std::array::from_fn(|channel| {
                let sum = waves.iter().map(|[along, down, phase, weight, shift]| {
                    weight * (along * x + down * y + phase + shift * channel as f32).sin()
                });
                0.5 + 0.25 * sum.sum::<f32>()
            })
        })
    }),
    ("discs", |random, width, height| {
        let ground = random.colour();
        let discs: Vec<([f32; 3], [f32; 3])> = (0..9)
            .map(|_| {
                let place = [width as f32 * random.unit(), height as f32 * random.unit()];
                ([place[0], place[1], 10.0 + 40.0 * random.unit()], random.colour())
            })
            .collect();
        painted(width, height, |x, y| {
            let over =
                discs.iter().rev().find(|([left, top, radius], _)| (x - left).hypot(y - top) < *radius);
            over.map_or(ground, |(_, colour)| *colour)
        })
    }),
    ("strokes", |random, width, height| {
        // Dark marks in lines on a light ground, like writing.
        let marks: Vec<f32> = (0..width * height / 8).map(|_| random.unit()).collect();
        painted(width, height, |x, y| {
            let (column, line) = (x as usize / 4, y as usize / 14);
            let inside = y as usize % 14 < 9;
            let drawn = marks.get(line * (width / 4 + 1) + column).is_some_and(|mark| *mark < 0.45);
            [if inside && drawn { 0.05 } else { 0.97 }; 3]
        })
    }),
    ("plain", |random, width, height| {
        let bright = if random.unit() < 0.5 { 0.0 } else { 1.0 };
        painted(width, height, |_, _| [bright; 3])
    }),
];

const SOUNDS: [(&str, Play); 6] = [
    ("chord", |random, rate, count| {
        let tones: Vec<f32> = (0..4).map(|_| 110.0 * 16_f32.powf(random.unit())).collect();
        played(count, |at| tones.iter().map(|tone| 0.2 * (TAU * tone * at as f32 / rate).sin()).sum())
    }),
    ("chirp", |random, rate, count| {
        let (low, span) = (100.0 + 200.0 * random.unit(), 0.4 * rate);
        played(count, |at| {
            let time = at as f32 / rate;
            0.8 * (TAU * time * (low + 0.5 * span * at as f32 / count as f32)).sin()
        })
    }),
    ("noise", |random, _, count| played(count, |_| 0.6 * (2.0 * random.unit() - 1.0))),
    ("clicks", |random, rate, count| {
        let apart = (rate * (0.05 + 0.1 * random.unit())) as usize;
        played(count, |at| if at % apart.max(1) < 20 { 0.95 } else { 0.0 })
    }),
    ("voice", |random, rate, count| {
        // Pulses at the pitch of a voice through three resonances that move.
        let pitch = 90.0 + 120.0 * random.unit();
        let mut states = [[0.0_f32; 2]; 3];
        let mut phase = 0.0;
        played(count, |at| {
            let time = at as f32 / rate;
            phase += pitch * (1.0 + 0.1 * (TAU * 3.0 * time).sin()) / rate;
            let pulse = if phase >= 1.0 { 1.0 } else { 0.0 };
            phase %= 1.0;
            let loud = 0.5 + 0.5 * (TAU * 2.5 * time).sin();
            let formants = [(500.0, 300.0), (1500.0, 600.0), (2500.0, 200.0)];
            let sum: f32 = states
                .iter_mut()
                .zip(formants)
                .map(|(state, (centre, swing))| {
                    let angle = TAU * (centre + swing * (TAU * 1.5 * time).sin()) / rate;
                    let next = pulse + 1.9 * angle.cos() * state[0] - 0.9025 * state[1];
                    *state = [next, state[0]];
                    next
                })
                .sum();
            (0.15 * loud * sum).clamp(-1.0, 1.0)
        })
    }),
    ("silence", |random, _, count| played(count, |_| 1e-4 * (2.0 * random.unit() - 1.0))),
];

fn painted(width: usize, height: usize, mut colour: impl FnMut(f32, f32) -> [f32; 3]) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            pixels.extend(colour(x as f32, y as f32).map(|value| (value.clamp(0.0, 1.0) * 255.0) as u8));
        }
    }
    pixels
}

fn played(count: usize, sample: impl FnMut(usize) -> f32) -> Vec<f32> {
    (0..count).map(sample).collect()
}

/// SplitMix64, which gives the same numbers on every platform.
struct Random(u64);

impl Random {
    /// Returns a number from 0 to 1.
    fn unit(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1_u32 << 24) as f32
    }

    fn colour(&mut self) -> [f32; 3] {
        std::array::from_fn(|_| self.unit())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn samples_are_the_same_every_time_and_no_two_are_alike() {
        let processor = ProcessorSettings {
            picture: Some(PictureSettings::default()),
            sound: Some(Default::default()),
            ignored: Vec::new(),
        };
        let mut origins = BTreeSet::new();
        for pass in [Pass::Picture, Pass::Clip] {
            for set in [SampleSet::Calibration, SampleSet::Verification] {
                let samples = tower_samples(pass, &processor, 750, set).expect("made");
                assert_eq!(samples, tower_samples(pass, &processor, 750, set).expect("made"));
                for (name, sample) in samples {
                    assert!(origins.insert(sample.origin) || name == "plain", "{name} twice");
                    let count = sample.values.len() / sample.width;
                    assert!(count > 0 && sample.values.iter().all(|value| value.is_finite()), "{name}");
                    let places = if pass == Pass::Picture { count } else { 0 };
                    assert!(sample.columns.len() == places && sample.rows.len() == places, "{name}");
                }
            }
        }
        // No longer than requested: two soft tokens are eight frames.
        let short = tower_samples(Pass::Clip, &processor, 2, SampleSet::Calibration).expect("made");
        assert!(short.iter().all(|(_, sample)| sample.values.len() <= 8 * sample.width));
        let deaf = ProcessorSettings { sound: None, ..processor };
        let error = tower_samples(Pass::Clip, &deaf, 2, SampleSet::Calibration).expect_err("deaf");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
