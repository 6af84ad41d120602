//! Names of the samples that a network sees: volumes, or crops of them.

use crate::augment::Sampling;
use crate::dataset::Dataset;
use crate::split::Split;

impl Dataset {
    /// Names of the samples that a network sees of a split: where a volume has several crops, its name and the number
    /// of the crop.
    pub fn names_of(&self, sampling: &Sampling, split: Split) -> Vec<String> {
        let first = sampling.first_sample(split);
        let samples = first..first + sampling.samples(split);
        let volumes: Vec<usize> = samples.map(|sample| sampling.volume_of(sample).1).collect();
        let named = |(at, &volume): (usize, &usize)| {
            let before = volumes[..at].iter().rev();
            let crop = before.take_while(|&&other| other == volume).count();
            let name = self.name(split, volume);
            if crop == 0 && volumes.get(at + 1) != Some(&volume) {
                return name;
            }
            format!("{name}-crop{crop}")
        };
        volumes.iter().enumerate().map(named).collect()
    }
}
