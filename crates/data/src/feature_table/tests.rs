//! Tables of features.

use super::*;

fn table(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

/// What is wrong with a table.
fn refusal(text: &str, columns: &[&str]) -> String {
    let columns: Vec<String> = columns.iter().map(|&name| name.to_owned()).collect();
    read_table(table(text).path(), &columns)
        .unwrap_err()
        .to_string()
}

#[test]
fn columns_are_read_in_their_order_or_as_asked() {
    let text = "case, age ,sex\n\"a, 1\",63,0\n b ,5.5,1\n";
    let (names, rows) = read_table(table(text).path(), &[]).unwrap();
    assert_eq!(names, ["age", "sex"]);
    assert_eq!(rows["a, 1"], [63.0, 0.0]);
    assert_eq!(rows["b"], [5.5, 1.0]);
    let (names, rows) = read_table(table(text).path(), &["sex".to_owned()]).unwrap();
    assert_eq!((names, &rows["b"]), (vec!["sex".to_owned()], &vec![1.0]));
}

#[test]
fn tables_that_are_none_are_refused() {
    for (text, columns, told) in [
        ("case,age\na,old\n", &[][..], "`old` as `age` of `a`"),
        ("case,age\na,\n", &[], "`` as `age` of `a`"),
        ("case,age\na,inf\n", &[], "`inf` as `age`"),
        ("case,age\na,1\na,2\n", &[], "two rows `a`"),
        ("case,age,age\na,1,2\n", &[], "the name `age` of column 3"),
        ("case\na\n", &[], "0 columns of features"),
        ("", &[], "0 columns of features"),
        ("case,age\na,1,2\n", &[], "line: 2"),
        ("case,age\na,1\n", &["size"], "no column `size`"),
        ("case,age\na,1\n", &["age", "age"], "`age` twice"),
    ] {
        let error = refusal(text, columns);
        assert!(error.contains(told), "{told} is not in {error}");
    }
}
