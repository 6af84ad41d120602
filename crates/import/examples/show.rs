//! Prints what files become.
fn main() {
    let (mut ok, mut refused) = (0, 0);
    for file in std::env::args().skip(1) {
        match partita_import::read(
            file.as_ref(),
            &partita_import::Options {
                output: Some(0),
                ..Default::default()
            },
        ) {
            Ok(found) => {
                ok += 1;
                println!("{file}: {} nodes", found.graph.nodes.len());
                if std::env::var_os("TEXT").is_some() {
                    println!("{}", partita_graph::text::print(&found.graph));
                }
            }
            Err(error) => {
                refused += 1;
                println!("{file}: {error}")
            }
        }
    }
    println!("{ok} imported, {refused} refused");
}
