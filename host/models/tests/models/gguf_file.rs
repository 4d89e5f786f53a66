//! Writes GGUF files, valid or invalid, part by part.

/// A GGUF file, part by part.
#[derive(Clone)]
pub struct File {
    pub version: u32,
    pub tensors: u64,
    pub entries: u64,
    pub body: Vec<u8>,
}

impl File {
    pub fn new() -> Self {
        File { version: 3, tensors: 0, entries: 0, body: Vec::new() }
    }

    pub fn text(mut self, text: &[u8]) -> Self {
        self.body.extend((text.len() as u64).to_le_bytes());
        self.body.extend(text);
        self
    }

    pub fn number(mut self, number: u32) -> Self {
        self.body.extend(number.to_le_bytes());
        self
    }

    pub fn wide(mut self, number: u64) -> Self {
        self.body.extend(number.to_le_bytes());
        self
    }

    pub fn flag(mut self, flag: bool) -> Self {
        self.body.push(flag.into());
        self
    }

    pub fn key(mut self, key: &[u8], kind: u32) -> Self {
        self.entries += 1;
        self.text(key).number(kind)
    }

    pub fn architecture(self, name: &str) -> Self {
        self.key(b"general.architecture", 8).text(name.as_bytes())
    }

    pub fn tensor(mut self, name: &str, shape: &[u64], kind: u32, offset: u64) -> Self {
        self.tensors += 1;
        let named = self.text(name.as_bytes()).number(shape.len() as u32);
        shape.iter().fold(named, |file, &extent| file.wide(extent)).number(kind).wide(offset)
    }

    /// Returns the file: the head, padded, and the data.
    pub fn data(&self, data: &[u8]) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.tensors.to_le_bytes());
        file.extend(self.entries.to_le_bytes());
        file.extend(&self.body);
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(data);
        file
    }
}
