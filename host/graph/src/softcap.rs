//! The soft-cap of the logits: finds it if it is a model's last operation, and removes it.

use crate::{Component, ComponentKind, Graph, Op, Role, ValueId, ValueSource};

impl Component {
    /// Returns the value that is capped to get the logits, and the cap.
    fn capped_logits(&self) -> Option<(ValueId, f32)> {
        let (logits, _) = self.outputs.iter().find(|(_, role)| *role == Role::Logits)?;
        let ValueSource::Node(node) = self.values.get(logits.0 as usize)?.source else { return None };
        let node = self.nodes.get(node.0 as usize)?;
        match (&node.op, node.inputs.first()) {
            (Op::Softcap { cap }, Some(input)) => Some((*input, *cap)),
            _ => None,
        }
    }
}

impl Graph {
    /// Returns the cap if the last operation before the logits is `cap · tanh(logits / cap)`.
    pub fn logits_softcap(&self) -> Option<f32> {
        Some(self.component(ComponentKind::Head).ok()?.capped_logits()?.1)
    }

    /// Returns the model without the soft-cap of the logits, unchanged if it has none. The weights'
    /// data are shared.
    #[must_use]
    pub fn without_logits_softcap(&self) -> Graph {
        let mut graph = self.clone();
        let heads = graph.components.iter_mut().filter(|component| component.kind == ComponentKind::Head);
        for head in heads {
            if let Some((uncapped, _)) = head.capped_logits()
                && let Some(logits) = head.outputs.iter_mut().find(|(_, role)| *role == Role::Logits)
            {
                // Entry points contain only operations on which a result depends, so they do not
                // contain the soft-cap any more.
                logits.0 = uncapped;
            }
        }
        graph
    }
}
