//! The soft-cap of the logits: whether a model has one as its last operation, and the model without
//! it.

use crate::{Component, ComponentKind, Graph, Op, Role, ValueId, ValueSource};

impl Component {
    /// What is capped before it leaves as logits, and the cap.
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
    /// The cap, where the last operation before the logits is `cap · tanh(logits / cap)`.
    pub fn logits_softcap(&self) -> Option<f32> {
        Some(self.component(ComponentKind::Head).ok()?.capped_logits()?.1)
    }

    /// The same model with logits that leave before their soft-cap; the same where there is none.
    /// Data of weights are shared.
    #[must_use]
    pub fn without_logits_softcap(&self) -> Graph {
        let mut graph = self.clone();
        let heads = graph.components.iter_mut().filter(|component| component.kind == ComponentKind::Head);
        for head in heads {
            if let Some((uncapped, _)) = head.capped_logits()
                && let Some(logits) = head.outputs.iter_mut().find(|(_, role)| *role == Role::Logits)
            {
                // Entry points hold only what a result depends on, so the operation is gone from
                // them.
                logits.0 = uncapped;
            }
        }
        graph
    }
}
