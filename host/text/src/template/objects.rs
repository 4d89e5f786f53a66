//! Objects that operators and filters return to templates. Each exposes its contents, so that its
//! size and depth are bounded like those of other values.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, State, Value};

/// Returns the values inside an object of this module, or `None` for other values.
pub(crate) fn inside(value: &Value) -> Option<&[Value]> {
    if let Some(generator) = value.downcast_object_ref::<Generator>() {
        return Some(&generator.items);
    }
    value.downcast_object_ref::<BoundMethod>().map(|bound| std::slice::from_ref(&bound.of))
}

/// A method that a template refers to without calling it: `{% if tool.items is defined %}`.
#[derive(Debug)]
pub(crate) struct BoundMethod {
    pub(crate) of: Value,
    pub(crate) method: &'static str,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        self.of.call_method(state, self.method, arguments)
    }
}

/// Python's generator: it has no length, is always true, and is read once.
#[derive(Debug)]
pub(crate) struct Generator {
    items: Vec<Value>,
    read: AtomicUsize,
}

impl Generator {
    pub(crate) fn new(items: Vec<Value>) -> Generator {
        Generator { items, read: AtomicUsize::new(0) }
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let generator = Arc::clone(self);
        Enumerator::Iter(Box::new(std::iter::from_fn(move || {
            generator.items.get(generator.read.fetch_add(1, Ordering::Relaxed)).cloned()
        })))
    }
}
