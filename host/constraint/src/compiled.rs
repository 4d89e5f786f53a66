//! Properties of a compiled grammar: whether a text can end, and attributes of its rules.

use std::collections::HashSet;

use llguidance::earley::{CGrammar, CSymIdx};

/// Returns the name of a rule that no finite text matches, if the whole text needs it. Conditions
/// of parametric rules count as met.
pub(crate) fn endless_rule(grammar: &CGrammar) -> Option<String> {
    let symbols = reachable(grammar);
    let last = symbols.iter().map(CSymIdx::as_index).max()?;
    // Rules with the number of parts whose end is not known, and the rules of each part.
    let (mut rules, mut rules_with) = (Vec::new(), vec![Vec::new(); last + 1]);
    let mut finite = Vec::new();
    for symbol in symbols {
        let data = grammar.sym_data(symbol);
        let leaf = data.is_terminal || data.is_nullable || data.lexeme.is_some();
        if leaf || !data.cond_nullable.is_empty() {
            finite.push(symbol);
        }
        // An embedded schema or grammar is a rule of one part.
        for rule in &data.rules {
            let parts = grammar.rule_rhs(*rule).0;
            parts.iter().for_each(|part| rules_with[part.as_index()].push(rules.len()));
            rules.push((symbol, parts.len()));
        }
    }
    let mut ends = vec![false; last + 1];
    while let Some(symbol) = finite.pop() {
        if std::mem::replace(&mut ends[symbol.as_index()], true) {
            continue;
        }
        for &rule in &rules_with[symbol.as_index()] {
            let (whole, left) = &mut rules[rule];
            *left -= 1;
            if *left == 0 {
                finite.push(*whole);
            }
        }
    }
    let start = grammar.start();
    (!ends[start.as_index()]).then(|| grammar.sym_name(start).to_owned())
}

/// Checks whether a rule sets a temperature for its part of the reply.
pub(crate) fn has_temperature(grammar: &CGrammar) -> bool {
    reachable(grammar).into_iter().any(|symbol| grammar.sym_data(symbol).props.temperature > 0.0)
}

/// Returns the symbols that the whole text may need.
fn reachable(grammar: &CGrammar) -> Vec<CSymIdx> {
    let mut found = vec![grammar.start()];
    let mut seen = HashSet::from([grammar.start()]);
    let mut next = 0;
    while let Some(&symbol) = found.get(next) {
        next += 1;
        for rule in grammar.rules_of(symbol) {
            for &part in grammar.rule_rhs(*rule).0 {
                if seen.insert(part) {
                    found.push(part);
                }
            }
        }
    }
    found
}
