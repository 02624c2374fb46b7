module github.com/libra-ina/libra/tools/mutants

go 1.26.0
