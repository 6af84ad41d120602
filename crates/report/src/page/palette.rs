//! Colors of categories.

use super::svg::color;
use partita_oracle::simulate::Category;

/// The color of a category, the same in all figures.
pub fn of(category: Category) -> &'static str {
    match category {
        Category::ForwardCompute => color::SKY,
        Category::ForwardExchange => color::PURPLE,
        Category::BackwardCompute => color::BLUE,
        Category::BackwardExchange => color::VERMILLION,
        Category::GradientAllreduceExposed => color::ORANGE,
        Category::Redistribution => color::YELLOW,
        Category::Io => color::STONE,
        Category::Update => color::GREEN,
    }
}

/// All categories with their colors.
pub fn entries() -> [(&'static str, String); 8] {
    Category::ALL.map(|category| (of(category), category.to_string()))
}
