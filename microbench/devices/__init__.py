"""What timing on a device needs beside a clock, one file for each kind of device. Light: no torch."""
