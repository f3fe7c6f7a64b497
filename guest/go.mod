module torpor/guest

go 1.23
