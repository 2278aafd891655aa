module mainstay/ports

go 1.26.0
