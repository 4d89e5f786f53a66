//! EmbeddingGemma: pooling the rows of a text into a vector.

use serde_json::json;
use shardwright_vocabulary::Result;

use super::{Making, Parts};
use crate::weight_file::missing_tensor;

/// Folders of the dense modules that the converter supports, and their tensors.
const DENSE: [(&str, &str); 2] = [("2_Dense", "dense_2"), ("3_Dense", "dense_3")];

/// llama.cpp's number for pooling by the mean.
const MEAN: u64 = 1;

impl Making<'_, '_> {
    /// Sets the pooling and the dense modules. As in llama.cpp, vectors have unit length.
    pub(super) fn embedding(&mut self, parts: &Parts<'_, '_>) -> Result<()> {
        self.fields.insert("use_bidirectional_attention".to_owned(), true.into());
        let key = self.key("pooling_type");
        match self.metadata.whole(&key)? {
            Some(MEAN) => {}
            Some(_) => return Err(self.unsupported(&key, "1, the mean")),
            None => self.note_assumed(&MEAN.into(), "a type of pooling of"),
        }
        let present = DENSE.map(|(_, tensor)| parts.tensor(&format!("{tensor}.weight")));
        for ((folder, name), tensor) in DENSE.iter().zip(present) {
            let keys = ["feat_in", "feat_out"].map(|end| self.key(&format!("{name}_{end}")));
            let tensor_name = format!("{name}.weight");
            let Some(tensor) = tensor else {
                // The converter writes both modules or neither.
                let sized = keys.iter().any(|key| self.metadata.get(key).is_some());
                if sized || present.iter().any(Option::is_some) {
                    return Err(missing_tensor(self.metadata.path(), &tensor_name));
                }
                continue;
            };
            let (outputs, inputs) = (tensor.shape.first().copied(), tensor.shape.get(1).copied());
            for (key, extent) in keys.iter().zip([inputs, outputs]) {
                if self.metadata.whole(key)?.is_some_and(|size| Some(size) != extent) {
                    return Err(self.unsupported(key, "the size of the module's tensor"));
                }
            }
            let module = json!({ "in_features": inputs, "out_features": outputs });
            self.set(folder, module, &tensor_name);
        }
        if present.iter().all(Option::is_none) {
            self.assumed.push(
                "assumed: no dense modules behind the mean; convert with `--sentence-transformers-dense-modules` to keep them"
                    .to_owned(),
            );
        }
        self.assumed.push(
            "assumed: vectors divided by their length, which the file omits and llama.cpp does".to_owned(),
        );
        Ok(())
    }
}
